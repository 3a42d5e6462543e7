//go:build linux

package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Accelerator is one GPU, or one MIG instance of a GPU, that a workload can be
// given.
type Accelerator struct {
	Index  int    // its place in the order of [Accelerators]
	Name   string // what its driver calls it
	Vendor string // "nvidia" or "amd"
	Grant
}

// Grant is what a sandbox must hold for its workload to use some accelerators, and
// nothing that would let it use another. Both vendors' libraries also read /proc
// outside the processes, so a [Spec] with one needs WholeProc; what they read there
// is therefore not repeated in Mounts.
type Grant struct {
	Devices []Device
	Mounts  []string // host paths to mount read-only at the same place
	Files   []File   // over what the host has there
	Groups  []uint32 // whose members may open the devices, where not everybody may
}

// Choose returns what the accelerators with these indices need together, each
// thing once, in the order of all. It refuses an index that all does not hold or
// that is asked for twice.
func Choose(all []Accelerator, indices []int) (Grant, error) {
	for i, index := range indices {
		if slices.Contains(indices[:i], index) {
			return Grant{}, fmt.Errorf("GPU %d is asked for twice", index)
		}
		if !slices.ContainsFunc(all, func(a Accelerator) bool { return a.Index == index }) {
			return Grant{}, fmt.Errorf("there is no GPU %d that can be given: this host has %s", index, list(all))
		}
	}
	var g Grant
	for _, a := range all {
		if !slices.Contains(indices, a.Index) {
			continue
		}
		g.Devices = appendNew(g.Devices, a.Devices...)
		g.Mounts = appendNew(g.Mounts, a.Mounts...)
		g.Groups = appendNew(g.Groups, a.Groups...)
		for _, f := range a.Files {
			if !slices.ContainsFunc(g.Files, func(have File) bool { return have.Target == f.Target }) {
				g.Files = append(g.Files, f)
			}
		}
	}
	return g, nil
}

// list names accelerators in one line.
func list(all []Accelerator) string {
	if len(all) == 0 {
		return "none"
	}
	var names []string
	for _, a := range all {
		names = append(names, fmt.Sprintf("%d (%s)", a.Index, a.Name))
	}
	return strings.Join(names, ", ")
}

func appendNew[T comparable](s []T, more ...T) []T {
	for _, v := range more {
		if !slices.Contains(s, v) {
			s = append(s, v)
		}
	}
	return s
}

// Accelerators reads from root ("/" on a host) what GPUs there are, from files of
// the drivers alone: nothing is run and no device is opened. The order, and so the
// index, is NVIDIA by PCI address (the order of nvidia-smi), then AMD by the number
// of its kfd node. A GPU that is cut into MIG instances stands as those, by GPU
// instance and compute instance, and not itself.
//
// A GPU that is there but cannot be given keeps its index and is left out; the
// error, one line for each, says why and what to do. So both results may be set.
//
// Modes and numbers are those of the moment: [Host.Start] checks the numbers again.
func Accelerators(root string) ([]Accelerator, error) {
	h := host{root: root}
	// WSL2 shows its GPUs through one node that cannot be cut into GPUs, and through
	// libraries of the Windows driver.
	if h.exists("/dev/dxg") {
		return nil, errors.New("/dev/dxg: a GPU of WSL2 cannot be given to a sandbox; link a host that runs Linux itself")
	}
	var all []Accelerator
	var errs []error
	index := 0
	for _, find := range []func() ([]Accelerator, []error){h.nvidia, h.amd} {
		found, failed := find()
		for i := range found {
			if failed[i] == nil {
				found[i].Index = index
				all = append(all, found[i])
			} else {
				errs = append(errs, fmt.Errorf("GPU %d (%s): %w", index, found[i].Name, failed[i]))
			}
			index++
		}
	}
	return all, errors.Join(errs...)
}

// host reads the files of a host whose root may be a directory, for tests.
type host struct{ root string }

func (h host) exists(name string) bool {
	_, err := os.Lstat(h.root + name)
	return err == nil
}

func (h host) read(name string) (string, error) {
	b, err := os.ReadFile(h.root + name)
	// The name the operator knows, not the fixture's.
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		pe.Path = name
	}
	return string(b), err
}

// dirs returns the names of the directories in dir, none when it is absent.
func (h host) dirs(dir string) []string {
	entries, _ := os.ReadDir(h.root + dir)
	var names []string
	for _, e := range entries {
		// kfd's nodes are kobjects, NVIDIA's are /proc directories: no links in either.
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// major returns the number of a character driver, from /proc/devices.
func (h host) major(driver string) (uint32, bool) {
	devices, _ := h.read("/proc/devices")
	devices, _, _ = strings.Cut(devices, "Block devices:")
	for line := range strings.Lines(devices) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == driver {
			n, err := strconv.ParseUint(f[0], 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}

// give adds a device node to g, with the group that may open it. repair is what
// makes the node when it is missing. access is the r and w bits that the workload
// needs of the mode, as a digit.
func (g *Grant) give(h host, d Device, access fs.FileMode, repair string) error {
	var st unix.Stat_t
	err := unix.Lstat(h.root+d.Path, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s is missing: %s", d.Path, repair)
	case err != nil:
		return fmt.Errorf("%s: %w", d.Path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return fmt.Errorf("%s is not a character device: remove it and %s", d.Path, repair)
	}
	if major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev); major != d.Major || minor != d.Minor {
		return fmt.Errorf("%s is device %d:%d where the driver has %d:%d: remove it and %s",
			d.Path, major, minor, d.Major, d.Minor, repair)
	}
	mode := fs.FileMode(st.Mode) & 0o777
	switch {
	case mode&access == access: // everybody may; a group would only add rights elsewhere
	case mode>>3&access == access && st.Gid != 0:
		g.Groups = appendNew(g.Groups, st.Gid)
	case mode>>3&access == access:
		return fmt.Errorf("%s (mode %04o) is open to root's group only: give it a group of its own, such as video", d.Path, mode)
	default:
		return fmt.Errorf("%s (mode %04o) is closed to its group and to others: open it to one of them", d.Path, mode)
	}
	g.Devices = append(g.Devices, d)
	return nil
}

// NVIDIA's numbers under major 195, which Linux assigns to it
// (Documentation/admin-guide/devices.txt): N is the GPU with that device minor, 254
// is modesetting and 255 is control. Its other majors are given out at run time.
const (
	nvidiaMajor    = 195
	nvidiactlMinor = 255
)

// nvidia returns the GPUs of /proc/driver/nvidia and, at the same place, why one
// cannot be given.
func (h host) nvidia() ([]Accelerator, []error) {
	const proc = "/proc/driver/nvidia"
	addresses := h.dirs(proc + "/gpus")
	// Domains have four hexadecimal digits or more and the rest is of fixed width, so
	// this is the numbers' order.
	slices.SortFunc(addresses, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	var all []Accelerator
	var errs []error
	for _, address := range addresses {
		info, err := h.read(proc + "/gpus/" + address + "/information")
		if field(info, "GPU Excluded") == "Yes" {
			continue // its owner told the driver to leave it alone
		}
		name := cmp.Or(field(info, "Model"), "NVIDIA at "+address)
		minor, perr := strconv.ParseUint(field(info, "Device Minor"), 10, 8)
		if err == nil && (perr != nil || minor >= 254) {
			err = fmt.Errorf("%s/gpus/%s/information names no device minor", proc, address)
		}
		if err != nil {
			all = append(all, Accelerator{Name: name, Vendor: "nvidia"})
			errs = append(errs, err)
			continue
		}
		instances := h.mig(int(minor))
		if len(instances) == 0 {
			instances = []migInstance{{}} // the GPU itself
		}
		for _, mig := range instances {
			a := Accelerator{Name: name + mig.name, Vendor: "nvidia"}
			err := h.grantNvidia(&a.Grant, uint32(minor), mig)
			all, errs = append(all, a), append(errs, err)
		}
	}
	return all, errs
}

// grantNvidia fills g with what one GPU, or one MIG instance of it, needs. Modeset
// and nvswitch nodes are never among it, nor another GPU's.
func (h host) grantNvidia(g *Grant, minor uint32, mig migInstance) error {
	// It loads the modules and makes the nodes; nothing else does after a boot.
	const repair = "run nvidia-modprobe -c0 -u"
	uvm, ok := h.major("nvidia-uvm")
	if !ok {
		return fmt.Errorf("the nvidia-uvm module is not loaded: %s", repair)
	}
	for _, d := range []Device{
		{"/dev/nvidiactl", nvidiaMajor, nvidiactlMinor},
		{"/dev/nvidia-uvm", uvm, 0},
		{"/dev/nvidia-uvm-tools", uvm, 1}, // drivers from 570 on open it at start
	} {
		if err := g.give(h, d, 6, repair); err != nil {
			return err
		}
	}
	gpu := Device{fmt.Sprintf("/dev/nvidia%d", minor), nvidiaMajor, minor}
	if err := g.give(h, gpu, 6, fmt.Sprintf("run nvidia-modprobe -c%d -u", minor)); err != nil {
		return err
	}
	for _, access := range mig.access {
		text, err := h.read(access)
		if err != nil {
			return err
		}
		caps, ok := h.major("nvidia-caps")
		n, err := strconv.ParseUint(field(text, "DeviceFileMinor"), 10, 20)
		if !ok || err != nil {
			return fmt.Errorf("%s: the driver gives no capability device for it", access)
		}
		d := Device{fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n), caps, uint32(n)}
		if err := g.give(h, d, 4, "run nvidia-modprobe -f "+access); err != nil {
			return err
		}
	}
	// With 1 here the libraries try to make and chmod device nodes themselves.
	if params, err := h.read("/proc/driver/nvidia/params"); err == nil {
		params = strings.Replace(params, "ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0", 1)
		g.Files = append(g.Files, File{Target: "/proc/driver/nvidia/params", Data: []byte(params)})
	}
	g.mount(h, "/sys/devices/system/memory/block_size_bytes")
	return nil
}

// migInstance is a compute instance of a GPU instance. Its capability files name
// the two devices that open it, and no other, to a process.
type migInstance struct {
	name   string
	access []string
}

// mig returns the MIG instances of the GPU with this device minor; the driver
// numbers its capability directories by it.
func (h host) mig(minor int) []migInstance {
	dir := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig", minor)
	var all []migInstance
	for _, gi := range numbered(h.dirs(dir), "gi") {
		giDir := fmt.Sprintf("%s/gi%d", dir, gi)
		for _, ci := range numbered(h.dirs(giDir), "ci") {
			all = append(all, migInstance{
				name:   fmt.Sprintf(" MIG %d/%d", gi, ci),
				access: []string{giDir + "/access", fmt.Sprintf("%s/ci%d/access", giDir, ci)},
			})
		}
	}
	return all
}

// amd returns the GPUs of the kfd topology and, at the same place, why one cannot
// be given.
func (h host) amd() ([]Accelerator, []error) {
	const nodes = "/sys/class/kfd/kfd/topology/nodes"
	var all []Accelerator
	var errs []error
	for _, node := range numbered(h.dirs(nodes), "") {
		dir := fmt.Sprintf("%s/%d", nodes, node)
		properties, err := h.read(dir + "/properties")
		if err == nil && cmp.Or(property(properties, "simd_count"), "0") == "0" {
			continue // a node of processors
		}
		a := Accelerator{Name: "AMD", Vendor: "amd"}
		if version, err := strconv.Atoi(property(properties, "gfx_target_version")); err == nil {
			// 90010 is 9, 0, 10: gfx90a.
			a.Name = fmt.Sprintf("AMD gfx%d%x%x", version/10000, version/100%100, version%100)
		}
		code, _ := h.read(dir + "/name")
		if code = strings.TrimSpace(code); code != "" && code != "ip discovery" {
			a.Name += " " + code
		}
		if err == nil {
			err = h.grantAMD(&a.Grant, property(properties, "drm_render_minor"))
		}
		all, errs = append(all, a), append(errs, err)
	}
	return all, errs
}

// grantAMD fills g with what one GPU needs. The device program is what keeps the
// others away: kfd asks the device control group for a GPU's render minor
// (kfd_devcgroup_check_permission in amdkfd), so no node of another must be in g.
func (h host) grantAMD(g *Grant, render string) error {
	minor, err := strconv.ParseUint(render, 10, 20)
	if err != nil || minor == 0 {
		return errors.New("kfd names no render node for it: load amdgpu with rendering")
	}
	kfd, ok := h.major("kfd")
	drm, ok2 := h.major("drm")
	if !ok || !ok2 {
		return errors.New("/proc/devices names no kfd or no drm: run modprobe amdgpu")
	}
	const repair = "run udevadm trigger --subsystem-match=drm --subsystem-match=kfd"
	node := fmt.Sprintf("renderD%d", minor)
	if err := g.give(h, Device{"/dev/kfd", kfd, 0}, 6, repair); err != nil {
		return err
	}
	if err := g.give(h, Device{"/dev/dri/" + node, drm, uint32(minor)}, 6, repair); err != nil {
		return err
	}
	// /sys/class/drm/renderD128 is a link ../../devices/pci…/0000:03:00.0/drm/renderD128.
	const class = "/sys/class/drm"
	link, err := os.Readlink(h.root + class + "/" + node)
	if err != nil {
		return fmt.Errorf("%s/%s is no link to a device: load amdgpu with rendering", class, node)
	}
	card := path.Dir(path.Dir(path.Join(class, link)))
	if !strings.HasPrefix(card, "/sys/devices/") {
		return fmt.Errorf("%s/%s leads to %s, outside /sys/devices", class, node, card)
	}
	g.mount(h, "/sys/devices/virtual/kfd/kfd/topology",
		"/sys/module/amdgpu/version", "/sys/module/amdgpu/initstate", class, card)
	return nil
}

// mount adds the paths that this host has; which of them there are depends on the
// kernel and on where the driver comes from.
func (g *Grant) mount(h host, paths ...string) {
	for _, p := range paths {
		if h.exists(p) {
			g.Mounts = append(g.Mounts, p)
		}
	}
}

// numbered returns the numbers of the names prefixN, ascending.
func numbered(names []string, prefix string) []int {
	var numbers []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= 0 && strconv.Itoa(n) == digits {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// field returns the value of a line "name: value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// property returns the value of a line "name value".
func property(text, name string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return f[1]
		}
	}
	return ""
}
