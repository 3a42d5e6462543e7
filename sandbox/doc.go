//go:build linux

// Package sandbox turns a [Spec] into a process tree that can see, use and reach
// only what the Spec names, and takes it away again whole.
//
// It is root's side. For each workload it makes a control group with limits and a
// device program, hands mounts to a small stage process (package sandbox/stage)
// that is born inside the group and new mount, pid, network, ipc, uts and cgroup
// namespaces, and waits. There is no user namespace: root is present, so one would
// add only trouble. The stage gives up root, filters its system calls and starts
// the workload; it stays as pid 1, so when the workload's main process ends the
// kernel ends every other process of it.
//
// # What a caller may rely on
//
// When [Workload.Done] is closed no process of the workload exists, its control
// group is gone and so is its run directory, whatever the workload did: forked,
// changed session, ignored signals, nested directories without end. Removing
// follows no link and leaves the run directory's file system never.
//
// Limits are the kernel's: memory (no swap; one process over the limit ends them
// all), processors, processes, devices. Disk use is counted four times a second, and
// less often where there is much to count, so a fast writer can pass its limit by what
// it writes in between before it is killed. What it keeps in open files that have no
// name any more is not counted at all: what must stay free ([Limits].Free, asked four
// times a second) is what holds then.
//
// # Crashes
//
// Nothing here is written down. A launcher that dies leaves control groups and run
// directories; [Host.Sweep] of the next one kills and removes them before it starts
// anything. A workload never outlives a Sweep.
//
// # Who is trusted
//
// The caller is root and decides what a Spec holds; every file in it is already
// open, so a path swapped after the caller's check changes nothing. The workload is
// trusted with nothing. Package sandbox knows no policy and no kinds of work.
package sandbox
