//go:build linux

package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A tree is a host's files beneath a directory.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T, devices string) tree {
	h := tree{t, t.TempDir()}
	h.file("/proc/devices", "Character devices:\n  1 mem\n"+devices+"\nBlock devices:\n510 nvidia-uvm\n  7 loop\n")
	return h
}

func (h tree) file(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.root+name), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.root+name, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// node makes a character device that nobody opens: it is only looked at.
func (h tree) node(name string, major, minor uint32, mode fs.FileMode, gid int) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.root+name), 0o755); err != nil {
		h.t.Fatal(err)
	}
	err := unix.Mknod(h.root+name, unix.S_IFCHR, int(unix.Mkdev(major, minor)))
	if err == unix.EPERM {
		h.t.Skip("making the device nodes of a fixture needs root")
	}
	if err != nil {
		h.t.Fatal(err)
	}
	// Mknod's mode passes through the umask.
	if err := os.Chmod(h.root+name, mode); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Chown(h.root+name, 0, gid); err != nil {
		h.t.Fatal(err)
	}
}

func (h tree) remove(name string) {
	h.t.Helper()
	if err := os.RemoveAll(h.root + name); err != nil {
		h.t.Fatal(err)
	}
}

const nvidiaDevices = "195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n508 nvidia-uvm\n506 nvidia-caps\n505 nvidia-nvswitch\n"

func (h tree) nvidia(address, model string, minor uint32) {
	h.file("/proc/driver/nvidia/gpus/"+address+"/information", fmt.Sprintf(
		"Model: \t\t %s\nIRQ:   \t\t 42\nGPU UUID: \t GPU-82523fd8-3897-f599-d088-ccd04ae45ec1\nVideo BIOS: \t 94.04.42.00.01\n"+
			"Bus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n", model, address, minor))
	h.node(fmt.Sprintf("/dev/nvidia%d", minor), 195, minor, 0o666, 0)
}

// twoNVIDIA is a host whose second GPU, by PCI address, has the first minor.
func twoNVIDIA(t *testing.T) tree {
	h := newTree(t, nvidiaDevices)
	h.nvidia("0000:1d:00.0", "NVIDIA A10G", 0)
	h.nvidia("0000:07:00.0", "NVIDIA H100", 1)
	h.file("/proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
	h.file("/sys/devices/system/memory/block_size_bytes", "8000000\n")
	h.node("/dev/nvidiactl", 195, 255, 0o666, 0)
	h.node("/dev/nvidia-modeset", 195, 254, 0o666, 0)
	h.node("/dev/nvidia-uvm", 508, 0, 0o666, 0)
	h.node("/dev/nvidia-uvm-tools", 508, 1, 0o666, 0)
	h.node("/dev/nvidia-nvswitch0", 505, 0, 0o666, 0)
	return h
}

func (h tree) amd(node int, render uint32, version int, code, pci string) {
	dir := fmt.Sprintf("/sys/class/kfd/kfd/topology/nodes/%d", node)
	h.file(dir+"/name", code+"\n")
	h.file(dir+"/properties", fmt.Sprintf("cpu_cores_count 0\nsimd_count 304\ngfx_target_version %d\nvendor_id 4098\ndrm_render_minor %d\n", version, render))
	card := "/sys/devices/pci0000:00/" + pci
	name := fmt.Sprintf("renderD%d", render)
	h.file(card+"/drm/"+name+"/dev", fmt.Sprintf("226:%d\n", render))
	if err := os.MkdirAll(h.root+"/sys/class/drm", 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink("../../devices/pci0000:00/"+pci+"/drm/"+name, h.root+"/sys/class/drm/"+name); err != nil {
		h.t.Fatal(err)
	}
	h.node("/dev/dri/"+name, 226, render, 0o660, 105)
}

const amdDevices = "226 drm\n511 kfd\n"

// kfd is what every host with an AMD GPU has: a node of processors, the driver and
// its device.
func (h tree) kfd() {
	h.file("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\ndrm_render_minor 0\n")
	h.file("/sys/class/kfd/kfd/topology/nodes/0/name", "\n")
	h.file("/sys/devices/virtual/kfd/kfd/topology/generation_id", "2\n")
	h.file("/sys/module/amdgpu/initstate", "live\n")
	h.node("/dev/kfd", 511, 0, 0o660, 109)
}

func find(t *testing.T, h tree) []Accelerator {
	t.Helper()
	all, err := Accelerators(h.root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTwoNVIDIA(t *testing.T) {
	all := find(t, twoNVIDIA(t))
	if got, want := list(all), "0 (NVIDIA H100), 1 (NVIDIA A10G)"; got != want {
		t.Fatalf("got %s, want %s: the order is the PCI address's", got, want)
	}
	want := Grant{
		Devices: []Device{
			{"/dev/nvidiactl", 195, 255}, {"/dev/nvidia-uvm", 508, 0}, {"/dev/nvidia-uvm-tools", 508, 1}, {"/dev/nvidia1", 195, 1},
		},
		Mounts: []string{"/sys/devices/system/memory/block_size_bytes"},
		Files: []File{{"/proc/driver/nvidia/params",
			[]byte("ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n")}},
	}
	got, err := Choose(all, []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the first alone (-want +got):\n%s", d)
	}
	want.Devices = append(want.Devices, Device{"/dev/nvidia0", 195, 0})
	got, err = Choose(all, []int{1, 0})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("both (-want +got):\n%s", d)
	}
}

func TestExcludedGPUIsNotThere(t *testing.T) {
	h := twoNVIDIA(t)
	h.file("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Model: \t NVIDIA H100\nDevice Minor: \t 1\nGPU Excluded:\t Yes\n")
	if got, want := list(find(t, h)), "0 (NVIDIA A10G)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPCIDomainsSortAsNumbers(t *testing.T) {
	h := twoNVIDIA(t)
	h.nvidia("10000:01:00.0", "NVIDIA behind a VMD", 2)
	if got, want := list(find(t, h)), "0 (NVIDIA H100), 1 (NVIDIA A10G), 2 (NVIDIA behind a VMD)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A GPU cut by MIG is offered as its instances, each with its own pair of
// capability devices.
func TestMIGInstances(t *testing.T) {
	h := twoNVIDIA(t)
	mig := "/proc/driver/nvidia/capabilities/gpu1/mig"
	for path, minor := range map[string]int{
		"/gi1/access": 12, "/gi1/ci0/access": 13,
		"/gi10/access": 30, "/gi10/ci0/access": 31,
		"/gi2/access": 21, // no compute instance: nothing can run there
	} {
		h.file(mig+path, fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor))
		h.node(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor), 506, uint32(minor), 0o444, 0)
	}
	all := find(t, h)
	if got, want := list(all), "0 (NVIDIA H100 MIG 1/0), 1 (NVIDIA H100 MIG 10/0), 2 (NVIDIA A10G)"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	got, err := Choose(all, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{"/dev/nvidiactl", 195, 255}, {"/dev/nvidia-uvm", 508, 0}, {"/dev/nvidia-uvm-tools", 508, 1}, {"/dev/nvidia1", 195, 1},
		{"/dev/nvidia-caps/nvidia-cap30", 506, 30}, {"/dev/nvidia-caps/nvidia-cap31", 506, 31},
	}
	if d := cmp.Diff(want, got.Devices); d != "" {
		t.Errorf("one slice (-want +got):\n%s", d)
	}
}

func TestTwoAMD(t *testing.T) {
	h := newTree(t, amdDevices)
	h.kfd()
	h.amd(10, 136, 110501, "ip discovery", "0000:c1:00.0")
	h.amd(2, 128, 90010, "aldebaran", "0000:03:00.0")
	all := find(t, h)
	if got, want := list(all), "0 (AMD gfx90a aldebaran), 1 (AMD gfx1151)"; got != want {
		t.Fatalf("got %s, want %s: the order is the kfd node's number", got, want)
	}
	got, err := Choose(all, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	want := Grant{
		Devices: []Device{{"/dev/kfd", 511, 0}, {"/dev/dri/renderD136", 226, 136}},
		Mounts: []string{"/sys/devices/virtual/kfd/kfd/topology", "/sys/module/amdgpu/initstate",
			"/sys/class/drm", "/sys/devices/pci0000:00/0000:c1:00.0"},
		Groups: []uint32{109, 105},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the second alone (-want +got):\n%s", d)
	}
}

func TestMixedVendors(t *testing.T) {
	h := twoNVIDIA(t)
	h.file("/proc/devices", "Character devices:\n"+nvidiaDevices+amdDevices)
	h.kfd()
	h.amd(1, 128, 110000, "ip discovery", "0000:03:00.0")
	all := find(t, h)
	if got, want := list(all), "0 (NVIDIA H100), 1 (NVIDIA A10G), 2 (AMD gfx1100)"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	got, err := Choose(all, []int{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Devices) != 6 || len(got.Groups) != 2 || len(got.Files) != 1 {
		t.Errorf("one of each vendor: got %+v, want six devices, two groups, one file", got)
	}
}

func TestNoGPU(t *testing.T) {
	all, err := Accelerators(newTree(t, "").root)
	if len(all) != 0 || err != nil {
		t.Errorf("got %v, %v; want nothing and no error", all, err)
	}
}

func TestThisHostsGPUs(t *testing.T) {
	all, err := Accelerators("/")
	t.Logf("%s; %v", list(all), err)
}

// What cannot be given is left out and named, and moves no other index.
func TestBrokenGPUKeepsItsPlace(t *testing.T) {
	h := twoNVIDIA(t)
	h.remove("/dev/nvidia1")
	all, err := Accelerators(h.root)
	if got, want := list(all), "1 (NVIDIA A10G)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(err), "GPU 0 (NVIDIA H100): /dev/nvidia1 is missing: run nvidia-modprobe -c1 -u"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBrokenNodesSayWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		host func(*testing.T) tree
		harm func(tree)
		want string
	}{
		"no uvm nodes after boot": {twoNVIDIA, func(h tree) { h.remove("/dev/nvidia-uvm") },
			"/dev/nvidia-uvm is missing: run nvidia-modprobe -c0 -u"},
		"no uvm-tools": {twoNVIDIA, func(h tree) { h.remove("/dev/nvidia-uvm-tools") },
			"/dev/nvidia-uvm-tools is missing: run nvidia-modprobe -c0 -u"},
		"uvm not loaded": {twoNVIDIA, func(h tree) {
			h.file("/proc/devices", "Character devices:\n195 nvidia\n\nBlock devices:\n508 nvidia-uvm\n")
		},
			"the nvidia-uvm module is not loaded: run nvidia-modprobe -c0 -u"},
		"stale uvm node": {twoNVIDIA, func(h tree) { h.file("/proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n") },
			"/dev/nvidia-uvm is device 508:0 where the driver has 511:0: remove it and run nvidia-modprobe -c0 -u"},
		"a file in the node's place": {twoNVIDIA, func(h tree) { h.remove("/dev/nvidiactl"); h.file("/dev/nvidiactl", "") },
			"/dev/nvidiactl is not a character device: remove it and run nvidia-modprobe -c0 -u"},
		"a link in the node's place": {twoNVIDIA, func(h tree) {
			h.remove("/dev/nvidia0")
			if err := os.Symlink("nvidia1", h.root+"/dev/nvidia0"); err != nil {
				h.t.Fatal(err)
			}
		}, "/dev/nvidia0 is not a character device: remove it and run nvidia-modprobe -c0 -u"},
		"a node of nobody": {twoNVIDIA, func(h tree) { h.remove("/dev/nvidiactl"); h.node("/dev/nvidiactl", 195, 255, 0o600, 0) },
			"/dev/nvidiactl (mode 0600) is closed to its group and to others: open it to one of them"},
		"a node of root's group": {twoNVIDIA, func(h tree) { h.remove("/dev/nvidiactl"); h.node("/dev/nvidiactl", 195, 255, 0o660, 0) },
			"/dev/nvidiactl (mode 0660) is open to root's group only: give it a group of its own, such as video"},
		"no device minor": {twoNVIDIA, func(h tree) { h.file("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Model: NVIDIA H100\n") },
			"/proc/driver/nvidia/gpus/0000:07:00.0/information names no device minor"},
		"modeset's minor": {twoNVIDIA, func(h tree) {
			h.file("/proc/driver/nvidia/gpus/0000:07:00.0/information", "Device Minor: 254\n")
		}, "names no device minor"},
		"no capability node": {twoNVIDIA, func(h tree) {
			for _, f := range []string{"/gi1/access", "/gi1/ci0/access"} {
				h.file("/proc/driver/nvidia/capabilities/gpu1/mig"+f, "DeviceFileMinor: 12\n")
			}
		}, "/dev/nvidia-caps/nvidia-cap12 is missing: run nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access"},
		"no kfd": {oneAMD, func(h tree) { h.remove("/dev/kfd") }, "/dev/kfd is missing: run udevadm trigger"},
		"no render node": {oneAMD, func(h tree) {
			h.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 4\ndrm_render_minor 0\n")
		},
			"kfd names no render node for it"},
		"render link elsewhere": {oneAMD, func(h tree) {
			h.remove("/sys/class/drm/renderD128")
			if err := os.Symlink("/etc/a/b", h.root+"/sys/class/drm/renderD128"); err != nil {
				h.t.Fatal(err)
			}
		}, "outside /sys/devices"},
	} {
		t.Run(name, func(t *testing.T) {
			h := c.host(t)
			c.harm(h)
			_, err := Accelerators(h.root)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func oneAMD(t *testing.T) tree {
	h := newTree(t, amdDevices)
	h.kfd()
	h.amd(1, 128, 110000, "ip discovery", "0000:03:00.0")
	return h
}

// A group is added only where others may not open the node.
func TestGroupOnlyWhereNeeded(t *testing.T) {
	h := twoNVIDIA(t)
	h.remove("/dev/nvidia1")
	h.node("/dev/nvidia1", 195, 1, 0o660, 44)
	h.remove("/dev/nvidiactl")
	h.node("/dev/nvidiactl", 195, 255, 0o666, 45)
	g, err := Choose(find(t, h), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]uint32{44}, g.Groups); d != "" {
		t.Error(d)
	}
}

func TestWSL2IsRefusedByName(t *testing.T) {
	h := twoNVIDIA(t)
	h.node("/dev/dxg", 10, 125, 0o666, 0)
	all, err := Accelerators(h.root)
	if len(all) != 0 || err == nil || !strings.Contains(err.Error(), "/dev/dxg: a GPU of WSL2") {
		t.Errorf("got %v, %v; want nothing and /dev/dxg named", all, err)
	}
}

func TestChooseRefusesByName(t *testing.T) {
	all := []Accelerator{{Index: 1, Name: "NVIDIA A10G"}}
	for _, c := range []struct {
		all     []Accelerator
		indices []int
		want    string
	}{
		{all, []int{0}, "there is no GPU 0 that can be given: this host has 1 (NVIDIA A10G)"},
		{all, []int{1, -1}, "there is no GPU -1 that can be given: this host has 1 (NVIDIA A10G)"},
		{all, []int{1, 1}, "GPU 1 is asked for twice"},
		{nil, []int{0}, "there is no GPU 0 that can be given: this host has none"},
	} {
		_, err := Choose(c.all, c.indices)
		if err == nil || err.Error() != c.want {
			t.Errorf("Choose(%v): got %v, want %q", c.indices, err, c.want)
		}
	}
	g, err := Choose(all, nil)
	if err != nil || len(g.Devices) != 0 {
		t.Errorf("Choose(nil): got %v, %v; want nothing", g, err)
	}
}
