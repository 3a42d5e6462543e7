package kai

import "github.com/hanzoai/link/kernels"

// chunk is how many values an arena asks its device for at a time: 16 MiB.
const chunk = 4 << 20

// arena is the working memory of a pack: values are taken in order and given
// back all at once, down to a mark. What it hands out holds whatever stood there
// before.
type arena struct {
	dev    kernels.Device
	chunks []kernels.Mem
	at     mark
}

// mark is a place in an arena: a chunk and how much of it is taken.
type mark struct{ chunk, used int }

// take returns n values.
func (a *arena) take(n int) kernels.Mem {
	for ; a.at.chunk < len(a.chunks); a.at = (mark{a.at.chunk + 1, 0}) {
		if c := a.chunks[a.at.chunk]; a.at.used+n <= c.Len {
			m := c.Slice(a.at.used, a.at.used+n)
			a.at.used = min(a.at.used+round16(n), c.Len)
			return m
		}
	}
	a.chunks = append(a.chunks, a.dev.Alloc(max(n, chunk)))
	return a.take(n)
}

// zeros returns n zeros.
func (a *arena) zeros(n int) kernels.Mem {
	m := a.take(n)
	a.dev.Zero(m)
	return m
}

// write returns a copy, on the device, of values in host memory.
func (a *arena) write(v []float32) kernels.Mem {
	m := a.take(len(v))
	a.dev.Write(m, v)
	return m
}

// read returns a copy of m in host memory.
func (a *arena) read(m kernels.Mem) []float32 {
	v := make([]float32, m.Len)
	a.dev.Read(v, m)
	return v
}

// release gives back everything taken since the mark was read from a.at.
func (a *arena) release(m mark) { a.at = m }
