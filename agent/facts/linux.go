//go:build linux

package facts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/spool/canon"
)

const (
	maxFile   = 64 << 10        // bytes read of a file of the kernel's
	maxOutput = 1 << 20         // bytes of a program's output; one that writes more is ended
	answering = 9 * time.Second // that a program may take
	maxGPUs   = 64              // of each vendor: more than any host holds
)

func parts(root, gpuHelper, storeDir string) []part {
	h := host{root}
	return []part{
		{"host " + root, h.itself},
		{"disk " + storeDir, func(context.Context) func(*api.WorkerFacts) { return disk(storeDir) }},
		{"nvidia " + root + " " + gpuHelper, func(ctx context.Context) func(*api.WorkerFacts) { return h.nvidia(ctx, gpuHelper) }},
		{"amd " + root, h.amd},
	}
}

// host reads the files of a host whose root may be a folder, for tests.
type host struct{ root string }

// head is the beginning of a file; empty without one.
func (h host) head(name string, limit int64) string {
	f, err := os.Open(filepath.Join(h.root, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, limit)) // what came before an error is as good
	return string(b)
}

// line is a file of one line, as a fact.
func (h host) line(name string) string { return clean(h.head(name, maxFile)) }

func (h host) has(name string) bool {
	_, err := os.Stat(filepath.Join(h.root, name))
	return err == nil
}

// number is a file of one number; 0 without one.
func (h host) number(name string) int64 {
	n, err := strconv.ParseInt(h.line(name), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func (h host) itself(context.Context) func(*api.WorkerFacts) {
	hostname := h.line("/proc/sys/kernel/hostname")
	arch := h.line("/proc/sys/kernel/arch") // since Linux 6.1; before it uname's stands
	cpus := count(h.line("/sys/devices/system/cpu/online"))
	model := cpuModel(h.head("/proc/cpuinfo", maxFile))
	memory, _, _ := strings.Cut(field(h.head("/proc/meminfo", maxFile), "MemTotal"), " ")
	kib, err := strconv.ParseInt(memory, 10, 53)
	if err != nil || kib < 0 {
		kib = 0
	}
	return func(w *api.WorkerFacts) {
		w.Hostname, w.CPUModel, w.Memory = hostname, model, kib<<10
		w.Arch, w.CPUs = cmp.Or(arch, w.Arch), cmp.Or(cpus, w.CPUs)
	}
}

// count is how many numbers a list of the kernel's names, as "0-3,8,10-11"; 0 for
// one that is not of this form.
func count(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, many := strings.Cut(part, "-")
		if !many {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 20)
		b, err2 := strconv.ParseUint(last, 10, 20)
		if err != nil || err2 != nil || b < a {
			return 0
		}
		n += int(b-a) + 1
	}
	return n
}

// cpuModel is the first processor's, from /proc/cpuinfo: by name where the
// architecture has names there, and on ARM by who made it and its part number.
func cpuModel(info string) string {
	for _, name := range []string{"model name", "cpu model", "cpu", "uarch"} { // x86, MIPS, POWER, RISC-V
		if model := clean(field(info, name)); model != "" {
			return model
		}
	}
	if part := clean(field(info, "CPU part")); part != "" {
		return clean("ARM implementer " + field(info, "CPU implementer") + " part " + part)
	}
	return ""
}

// disk is the free bytes of the file system that holds dir, or will: of its
// nearest ancestor that is there.
func disk(dir string) func(*api.WorkerFacts) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for err != nil && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &st)
	}
	free := int64(0)
	if err == nil {
		free = int64(st.Bavail) * st.Frsize
	}
	return func(w *api.WorkerFacts) { w.Disk = max(free, 0) }
}

// nvidia is NVIDIA's GPUs: as hanzo-gpu says, else as nvidia-smi says, else the
// names that the kernel driver's files have.
func (h host) nvidia(ctx context.Context, helper string) func(*api.WorkerFacts) {
	const proc = "/proc/driver/nvidia"
	if !h.has(proc + "/version") {
		return func(*api.WorkerFacts) {} // no such driver: nothing to run
	}
	found, ok := askHelper(ctx, helper)
	if !ok {
		found, ok = h.smi(ctx)
	}
	if !ok {
		found.GPUs = h.nvidiaFiles(proc + "/gpus")
	}
	driver := cmp.Or(clean(found.Driver), h.line("/sys/module/nvidia/version"))
	var gpus []api.GPU
	for _, g := range found.GPUs[:min(len(found.GPUs), maxGPUs)] {
		gpus = append(gpus, api.GPU{
			Name: cmp.Or(clean(g.Name), "NVIDIA"), Arch: clean(g.Arch), MemoryTotal: mebibytes(g.MemoryTotal), Unified: g.Unified,
		})
	}
	return func(w *api.WorkerFacts) {
		w.Driver, w.CUDA = driver, clean(found.CUDA)
		addGPUs(w, gpus)
	}
}

// askHelper runs hanzo-gpu. A helper that is not there, crashed with its driver, hangs
// or finds no library has not answered.
func askHelper(ctx context.Context, path string) (NVIDIA, bool) {
	out, err := output(ctx, path)
	if err != nil {
		return NVIDIA{}, false
	}
	var found NVIDIA
	if err := canon.Unmarshal(bytes.TrimSpace(out), &found); err != nil || found.Error != "" {
		return NVIDIA{}, false
	}
	return found, true
}

// smi asks nvidia-smi the same.
func (h host) smi(ctx context.Context) (NVIDIA, bool) {
	program := filepath.Join(h.root, "/usr/bin/nvidia-smi")
	out, err := output(ctx, program, "--query-gpu=name,uuid,driver_version,memory.total,compute_cap", "--format=csv,noheader,nounits")
	if err != nil {
		return NVIDIA{}, false
	}
	r := csv.NewReader(bytes.NewReader(out))
	r.FieldsPerRecord, r.TrimLeadingSpace = 5, true
	rows, err := r.ReadAll()
	if err != nil || len(rows) == 0 {
		return NVIDIA{}, false
	}
	var found NVIDIA
	for _, row := range rows {
		g := NVIDIAGPU{Name: row[0], UUID: row[1]}
		found.Driver = row[2]
		if mib, err := strconv.ParseInt(row[3], 10, 40); err == nil {
			g.MemoryTotal = mib << 20
		} else {
			g.Unified = true // "[N/A]": the driver counts none of its own, as on Jetson and GB10
		}
		if major, minor, ok := strings.Cut(row[4], "."); ok {
			g.Arch = "sm_" + major + minor
		}
		found.GPUs = append(found.GPUs, g)
	}
	// Drivers before 530 do not know --version; then the CUDA version is absent.
	if out, err := output(ctx, program, "--version"); err == nil {
		found.CUDA = field(string(out), "CUDA Version")
	}
	return found, true
}

// nvidiaFiles is what the kernel driver's files say, which is the names alone, in
// the order of the PCI addresses. A GPU that its owner excluded is not there.
func (h host) nvidiaFiles(dir string) []NVIDIAGPU {
	entries, _ := os.ReadDir(filepath.Join(h.root, dir))
	// Domains have four hexadecimal digits or more and the rest is of fixed width, so
	// this is the numbers' order.
	slices.SortFunc(entries, func(a, b os.DirEntry) int {
		return cmp.Or(cmp.Compare(len(a.Name()), len(b.Name())), cmp.Compare(a.Name(), b.Name()))
	})
	var gpus []NVIDIAGPU
	for _, e := range entries[:min(len(entries), maxGPUs)] {
		info := h.head(filepath.Join(dir, e.Name(), "information"), maxFile)
		if info != "" && field(info, "GPU Excluded") != "Yes" {
			gpus = append(gpus, NVIDIAGPU{Name: field(info, "Model"), UUID: field(info, "GPU UUID")})
		}
	}
	return gpus
}

// amd is AMD's GPUs: kfd's nodes, with the memory that drm counts and the names of
// libdrm's table.
func (h host) amd(context.Context) func(*api.WorkerFacts) {
	const nodes = "/sys/class/kfd/kfd/topology/nodes"
	entries, _ := os.ReadDir(filepath.Join(h.root, nodes))
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n >= 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var gpus []api.GPU
	for _, n := range numbers {
		dir := fmt.Sprintf("%s/%d", nodes, n)
		properties := h.head(dir+"/properties", maxFile)
		if simds := property(properties, "simd_count"); simds == "" || simds == "0" || len(gpus) == maxGPUs {
			continue // a node of processors, or one that this user may not see
		}
		g := api.GPU{Arch: gfx(property(properties, "gfx_target_version"))}
		g.Unified = apus[g.Arch]
		device := "/sys/class/drm/renderD" + clean(property(properties, "drm_render_minor")) + "/device/"
		total := h.number(device + "mem_info_vram_total")
		if g.Unified {
			// What the firmware set aside for it, or what it may map of the rest.
			total = max(total, h.number(device+"mem_info_gtt_total"))
		}
		g.MemoryTotal = mebibytes(total)
		code := h.line(dir + "/name")
		if code == "ip discovery" {
			code = ""
		}
		g.Name = cmp.Or(h.marketing(device), h.line(device+"product_name"), strings.TrimSpace(clean("AMD "+code)+" "+g.Arch))
		gpus = append(gpus, g)
	}
	if gpus == nil {
		return func(*api.WorkerFacts) {}
	}
	driver := h.line("/sys/module/amdgpu/version") // of a driver from outside the kernel's tree
	rocm, _, _ := strings.Cut(h.line("/opt/rocm/.info/version"), "-")
	hip := hipVersion(cmp.Or(h.head("/opt/rocm/share/hip/version", maxFile), h.head("/opt/rocm/bin/.hipVersion", maxFile)))
	return func(w *api.WorkerFacts) {
		w.Driver, w.ROCm, w.HIP = cmp.Or(w.Driver, driver), rocm, hip
		addGPUs(w, gpus)
	}
}

// gfx is the name of kfd's version: 90010 is 9, 0, 10, gfx90a.
func gfx(version string) string {
	v, err := strconv.ParseUint(version, 10, 20)
	if err != nil || v == 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", v/10000, v/100%100, v%100)
}

// apus are the GPUs that are part of a processor and use its memory, from the
// processor table of LLVM's AMDGPU guide. The MI300A, which shares gfx942 with
// cards, is not told apart.
var apus = map[string]bool{
	"gfx902": true, "gfx909": true, "gfx90c": true, "gfx1013": true, "gfx1033": true, "gfx1035": true, "gfx1036": true,
	"gfx1103": true, "gfx1150": true, "gfx1151": true, "gfx1152": true, "gfx1153": true,
}

// marketing is a GPU's name in libdrm's table, whose lines are device, revision,
// name; empty where it has none.
func (h host) marketing(device string) string {
	id := strings.TrimPrefix(h.line(device+"device"), "0x")
	revision := strings.TrimPrefix(h.line(device+"revision"), "0x")
	if id == "" || revision == "" {
		return ""
	}
	for line := range strings.Lines(h.head("/usr/share/libdrm/amdgpu.ids", 1<<20)) {
		f := strings.SplitN(line, ",", 3)
		if len(f) == 3 && strings.EqualFold(strings.TrimSpace(f[0]), id) && strings.EqualFold(strings.TrimSpace(f[1]), revision) {
			return clean(f[2])
		}
	}
	return ""
}

// hipVersion is 6.4.43483 of lines HIP_VERSION_MAJOR=6 and so on.
func hipVersion(text string) string {
	var numbers [3]string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(clean(line), "=")
		if i := slices.Index([]string{"HIP_VERSION_MAJOR", "HIP_VERSION_MINOR", "HIP_VERSION_PATCH"}, key); i >= 0 {
			numbers[i], _, _ = strings.Cut(value, "-")
		}
	}
	if slices.Contains(numbers[:], "") {
		return ""
	}
	return strings.Join(numbers[:], ".")
}

// output runs a program with an empty environment, within its time, and answers
// what it wrote. A program that fails, or writes too much, has answered nothing.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Env, c.Dir = []string{}, "/"
	// A group of its own, so that a child that it leaves ends with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out := &bounded{full: cancel}
	c.Stdout = out
	if err := c.Run(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// bounded keeps maxOutput bytes and calls full at the next.
type bounded struct {
	bytes.Buffer
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxOutput {
		b.full()
		return 0, fmt.Errorf("over %d bytes", maxOutput)
	}
	return b.Buffer.Write(p)
}

// ReadFrom hides the buffer's own, which has no bound.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// field is the value of the first line "name: value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// property is the value of the first line "name value".
func property(text, name string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

func uname() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Machine[:])
}
