package cpu

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// alone is the work, in floating-point operations, below which starting a thread
// costs more than it saves (about ten microseconds of one).
const alone = 1 << 20

// each calls f for the tasks [0, n), on all threads when the work is worth it.
// Which thread takes which task is chance, so no result may depend on it. It
// returns when all are done.
func (d *Device) each(n, work int, f func(w *worker, task int)) {
	if len(d.workers) == 1 || n <= 1 || work < alone {
		for i := range n {
			f(&d.workers[0], i)
		}
		return
	}
	var next atomic.Int64
	run := func(w *worker) {
		for {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			f(w, i)
		}
	}
	var wg sync.WaitGroup
	for i := 1; i < min(n, len(d.workers)); i++ {
		wg.Go(func() { run(&d.workers[i]) })
	}
	run(&d.workers[0])
	wg.Wait()
}

// span cuts n values into tasks of about size values and calls f for each
// [from, to). cost is the operations a value takes.
func (d *Device) span(n, size, cost int, f func(w *worker, from, to int)) {
	d.each(panels(n, size), n*cost, func(w *worker, i int) {
		f(w, i*size, min(n, (i+1)*size))
	})
}

// aligned is n zeros that start on a cache line.
func aligned(n int) []float32 {
	const line = 16
	s := make([]float32, n+line-1)
	skip := 0
	if n > 0 {
		skip = (line - int(uintptr(unsafe.Pointer(&s[0]))/4%line)) % line
	}
	return s[skip : skip+n : skip+n]
}
