package cpu

import "github.com/hanzoai/link/kernels"

func (d *Device) move(y, x []float32, add bool) {
	if add {
		d.table.add(y, y, x)
	} else {
		copy(y, x)
	}
}

func (d *Device) Gather(y, src kernels.Mem, ids []int32, n int, add bool) {
	needRows("Gather", y, src, ids, n)
	d.span(len(ids), rows(n), n*moveCost, func(_ *worker, from, to int) {
		for i := from; i < to; i++ {
			id := int(ids[i])
			d.move(y.Host[i*n:(i+1)*n], src.Host[id*n:(id+1)*n], add)
		}
	})
}

func (d *Device) Scatter(dst, src kernels.Mem, ids []int32, n int, add bool) {
	needRows("Scatter", src, dst, ids, n)
	// By columns, so that equal ids meet in order.
	d.columns(len(ids), n, moveCost, func(_ *worker, from, to int) {
		for i, id := range ids {
			at := int(id) * n
			d.move(dst.Host[at+from:at+to], src.Host[i*n+from:i*n+to], add)
		}
	})
}

func (d *Device) SegmentMean(y, x kernels.Mem, seg kernels.Segments, n int) {
	need("SegmentMean y", y, seg.Rows()*n)
	need("SegmentMean x", x, seg.Tokens()*n)
	d.each(seg.Rows(), x.Len*moveCost, func(_ *worker, r int) {
		segmentMean(y.Host[r*n:(r+1)*n], x.Host[int(seg[r])*n:int(seg[r+1])*n], d.table.add)
	})
}

func (d *Device) SegmentMeanBack(dx, dy kernels.Mem, seg kernels.Segments, n int) {
	need("SegmentMeanBack dx", dx, seg.Tokens()*n)
	need("SegmentMeanBack dy", dy, seg.Rows()*n)
	d.each(seg.Rows(), dx.Len*moveCost, func(_ *worker, r int) {
		segmentMeanBack(dx.Host[int(seg[r])*n:int(seg[r+1])*n], dy.Host[r*n:(r+1)*n])
	})
}

func (d *Device) Probe(y, cs, os kernels.Mem, ci, oi []int32, n int) {
	needProbe(y, cs, os, ci, oi, n)
	d.span(len(ci), rows(4*n), 4*n*moveCost, func(_ *worker, from, to int) {
		for i := from; i < to; i++ {
			probe(y.Host[i*4*n:(i+1)*4*n], cs.Host[int(ci[i])*n:], os.Host[int(oi[i])*n:], n)
		}
	})
}

func (d *Device) ProbeBack(dcs, dos, dy, cs, os kernels.Mem, ci, oi []int32, n int) {
	needProbe(dy, cs, os, ci, oi, n)
	need("ProbeBack dcs", dcs, cs.Len)
	need("ProbeBack dos", dos, os.Len)
	d.columns(len(ci), n, 4*moveCost, func(_ *worker, from, to int) {
		probeBack(dcs.Host, dos.Host, dy.Host, cs.Host, os.Host, ci, oi, n, from, to)
	})
}
