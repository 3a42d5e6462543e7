// Package store keeps the trees of files that workloads are given, in a folder of the
// agent's: trees/<hash>/ as policy.TreeHash names them, where the launcher looks.
//
// # Whole or not at all
//
// A tree is made in tmp/ and renamed to its place once each of its files has the size
// and the SHA-256 that the listing says, the listing has the hash that was asked for,
// and all of it is on stable storage. Whatever goes wrong, nothing of it stays: tmp is
// empty after a failed pull, and after Open. A tree that is here is never written
// again: its files have mode 0444 and its folders 0755, for the workload's user reads
// them too, and their owner is the agent, which no workload can become.
//
// # Room
//
// A tree is pulled only if it fits: all trees together stay within the owner's
// caps.disk, and a tenth of the file system stays free, of which is also subtracted
// what running work was promised. The question is put before the first byte of a file
// is asked for. Where room is needed, trees that no activity has pinned are removed, the
// least recently used first. The last use is the time of the tree's folder.
//
// # Faults
//
// A connection that breaks or is silent is made again, from the byte where it broke,
// with growing waits, until the context ends. Bytes that are not the ones that were
// asked for are final (integrity), as are a source's refusal and a disk that fails or
// is read-only (pull), and no room (capacity).
//
// One process uses a folder at a time, which systemd sees to. The Source is not
// trusted; the folder is.
package store
