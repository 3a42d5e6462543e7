// Package agent is the unprivileged half of a linked machine: it asks the cloud for
// work, fetches what the work needs, has the launcher start it, and says what became
// of it (HIP-1172 A2, A4, A5, A8, A10).
//
// # Who is trusted with what
//
//	cloud     may ask for work and for its end; what it sends is an envelope of a
//	          closed schema, judged against the owner's policy here and again by
//	          the launcher, which believes neither
//	agent     holds the node's credential, which opens this node's routes alone; it
//	          can ask the launcher for what the policy admits, and nothing else
//	workload  writes a spool; what lies there is data of an enemy
//
// # Life
//
// [Run] is one loop that owns all state. What waits (for a claim's answer, a report's,
// a pull, the launcher) is a goroutine that tells the loop, and Run returns after all of
// them have. At rest the only traffic is one claim every 25 seconds, which is also the
// heartbeat, and nothing else wakes up: that the policy file has changed the launcher
// tells, which watches it, and the agent then reads it itself, as it does for every
// envelope.
//
// # Crashes
//
// An activity is in the journal, on stable storage, before anything is done about
// it, and again before the launcher is asked to start it. After a crash, what the
// launcher was asked for is failed as lost, for the launcher kills an agent's work
// with the agent; what it was not asked for goes on, as long as its deadline has not
// passed. Reports that the cloud has not acknowledged are in the journal and are sent
// again, in their order. So every start is one start, and every activity taken has an
// end, whatever answer was lost and wherever the agent died.
//
// A journal that cannot be written, on a full disk for one, starts nothing: what the
// cloud offers then fails as capacity. A credential, a key or a link.json that cannot
// be read is an error of Run.
//
// # What stays on the disk
//
// A workload's spool is kept until the cloud has acknowledged all of its record. Then
// the launcher, which is root, is asked to remove what is in it, whatever a workload
// has made of it, and asked again until it has; that a record is sent whole is in the
// journal before. What the cloud refuses, or what is no record, stays for the owner:
// the status names it, and the launcher counts it against caps.disk.
//
// # The cloud's answers
//
// Only a problem document with code gone, on the claim or the registration of this
// node, means that the node was removed. A 410 of a proxy, 404, 401, 500, HTML, half
// an answer or none is waited out, with a back-off of 1 s that doubles to 60 s and is
// never less than a Retry-After. A connection that is silent for the wait and 15 s
// more is closed, and replaced by a new one.
package agent
