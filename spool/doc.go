// Package spool keeps the record of runs on this machine until the control plane
// has it, and afterwards.
//
// A [Spool] is one folder of one org and project. A [Log] is one run's events,
// one canonical JSON object a line, in seq order from 1 without gaps.
// [Log.Append] returns only after the line is on stable storage, so a step whose
// event was appended is a step that happened. Nothing here waits for the network
// or knows of it; package upload reads a spool and sends it.
//
// # Files
//
// Under $HANZO_SPOOL (default ~/.hanzo/spool), in <org>/<project>/, all readable
// with cat:
//
//	runs/<run>.log            the run's events (HIP-1334 §7), each line ended by \n
//	runs/<run>.ack            the highest seq the server acknowledged, in decimal
//	runs/<run>.metrics        what a trainer notes beside its events, a JSON object a line
//	runs/<run>.pid            who is writing the log, while it is
//	artifacts/<sha256>        an artifact's canonical bytes
//	artifacts/<sha256>.zst    the same, when another producer compressed them
//	artifacts/<sha256>.json   its metadata: only with it is the artifact held
//	datasets/<id>.json        a sealed dataset; its items are the artifact it names
//	gates/<hex of hash>.json  a gate
//	determinism/<hex of hash>.json
//	                          a determinism report (HIP-1334 §6.2)
//	<any of the four>.ack     empty: the server holds it
//	filed.json                the org, project and control plane it was sent to
//
// Before anyone has signed in, a spool is local/default.
//
// Only logs, metrics and acks ever change, logs and metrics by growing. What is here
// stays: to remove a spool, or what the server has of it, is for whose it is.
//
// # Crashes
//
// A crash can leave at most one torn line, at the end of a log. [Spool.Resume]
// cuts it off and [Log.Cut] says how much it was: an event whose Append had not
// returned, which its producer will append again. A line that is wrong anywhere
// else is [ErrCorrupt]; it is reported with its number and nothing is cut. So is
// a log that ends before the seq that the server acknowledged, and a file that
// does not look like a log at all.
//
// After a failed write or sync the Log refuses every later Append with that
// first error, because the state of the file is unknown until it is opened
// again. The event that failed may turn out to have been recorded: a trainer
// that resumes compares what it repeats with [Log.Check].
//
// Everything else appears whole or not at all, and an artifact's bytes before
// its metadata: after a crash during [Spool.Put] the artifact is not held and is
// put again. Temporary files are swept a day later.
//
// We assume that appending to a file does not damage what was synced before it,
// and that a rename is atomic within a directory. We do not assume that a write
// reaches the disk whole, nor that its pages reach it in order. Resume takes the
// log as the kernel shows it and syncs that; a kernel that failed to write a page
// and goes on showing it deceives us until the machine restarts.
//
// # Whoever writes a spool
//
// can write anything there: a sandboxed workload writes its own, and the agent,
// another user, sends it. So nothing here leaves the folder it was given, through
// whatever links and however names change meanwhile (links out of it are refused,
// also a person's own); nothing is opened but regular files and directories, and
// opening never waits, as it would for a named pipe; and what is read whole has a
// bound. Every path below $HANZO_SPOOL, which is trusted, is looked up that way.
//
// A spool that is attached ([Attach]) is bounded further: in the number of files in a
// folder and of records of a kind, in the bytes of a record and of an artifact, and it
// has no compressed artifacts. Determinism reports in it are not seen: they speak for
// every run of an environment, and its writer only for its own. Beyond a bound is
// [ErrCorrupt]. What its writer can still do is to spoil its own record: forge, hide or
// lose it. The server judges it.
//
// # Cost
//
// An event costs one write and one fsync before its step goes on, some
// milliseconds on an ordinary disk. There is no grouping: HIP-1334 §13.3 allows
// none.
//
// # Concurrency
//
// One process writes a run at a time: Create and Resume take its lock, which
// ends with the process, however it ends. Different runs of one spool can be
// written by different processes. Readers take no lock, see every event when its
// Append returns, perhaps a moment before it is on the disk, and ignore a torn
// tail. Content is by address and
// rename, so putting needs no lock either. Spools, Logs and Tails may be used by
// several goroutines, except that a Tail belongs to one.
//
// # Units
//
// Sizes are bytes. Times are UTC and the producer's own; only the server's order
// of receipt puts a gate before a run.
package spool
