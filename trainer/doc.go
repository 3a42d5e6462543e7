// Package trainer teaches a Kai model from sealed rows and records every step.
//
// [Fit] is the whole of it: it takes a [Stage], a model, a data build and a
// [Recorder], and returns when the run has ended or has been interrupted. What
// it trains is either every parameter of the model that the stage does not
// freeze ("full") or a small head for one question over the frozen model
// ("readout"). It knows no files of the record and no network: what it has to
// say goes to the Recorder as events and artifacts.
//
// # The master is the change
//
// Beside each trained parameter W stands the base's value W0 and the change D
// in float32. The optimizer moves D, and W = fl(W0 + D) by definition. Hence a
// small change is not rounded away at the size of W, and a capability that
// holds D, applied to its base, is the checkpoint bit for bit.
//
// # The same bits
//
// A run's weights and events are a function of the base, the rows and the
// stage. The order of the rows, the learning rate and the place of every sum
// are functions of (seed, step); nothing is drawn at run time. So the number of
// threads, the way a step is cut into micro-batches, and a kill at any step
// followed by [Config].Resume leave the same weights and the same log.
//
// # Crashes
//
// An event is on stable storage before the step that caused it goes on. The
// training state (the changes, both moments, the step and what they depend on)
// is written to a new folder, synced and renamed over the old; a crash or a
// full disk at any write leaves the previous state. A resumed run starts at the
// last state, repeats the steps between it and the end of the log, and compares
// each with what the log holds: one that differs in any bit ends the run failed
// (HIP-1334 §7.3), and none is appended twice.
//
// When ctx is cancelled the step in hand is finished, the state is written and
// the run is left open. A loss, norm or probability that is not finite ends the
// run failed, naming the step and the field, with the last state still there.
//
// # Units and concurrency
//
// Tokens are context tokens read by the model, counted from the start of the
// run. Losses are in nats, per unit of question weight. Fit starts no
// goroutine; one run uses its Model and Recorder alone until Fit returns.
package trainer
