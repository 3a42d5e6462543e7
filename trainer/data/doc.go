// Package data brings labelled rows from a person's file to the trainer, and
// keeps apart what trains and what judges.
//
// # The way of a row
//
//	a file ── Import ──▶ a suite ── Stage ──▶ a build ── OpenBuild ──▶ rows ── NewPlan ──▶ steps
//
// [Import] reads CSV, TSV or JSON Lines and writes an open suite: a folder
// <out>/<suite> with dataset.json and items.ndjson. [Check] is its dry run. Each
// row that cannot be kept is listed with its line and the reason.
//
// [Stage] seals suites into a build: a folder <stage>-<16 hex of the manifest's
// hash> with manifest.json, barrier.json and one <dataset id>.ndjson for each
// sealed dataset, items canonical and sorted by id (HIP-1334 §4.2). [OpenBuild]
// verifies every byte of it. [NewPlan] orders the rows of a build into steps;
// a [Cycle] walks over kept rows beside them.
//
// # What is kept apart
//
// Every row has one purpose, from its file's split column or from the hash of
// its example, so that it is the same at every staging. Rows of one state, or of
// one group where the file names groups, share an example and never part. The
// barrier leaves out of train and dev what also stands, in other words or under
// another id, in a set that judges; it says what it left out and why. A row is
// read for training only when its own purpose and its dataset's admit it: [OpenBuild]
// refuses a build that holds another with an error that is [ErrPurpose] and
// names file, line and item, before it looks at anything else.
//
// Of a suite that a run protects, a take keeps rows ([Take].Keep): train rows that
// do not train, sealed as a set of split "keep", on which the run holds its
// answers. They are attached and verified as training rows and [Build.Keep] lists
// them; [Build.Train] leaves them out, and none has a state that trains.
//
// # Same file, same bytes
//
// Nothing written here holds a time, a path or a random number. The same file
// with the same options gives the same suite, the same suites and takes the same
// build, on every machine. A changed file is another dataset id, never another
// content under one id.
//
// # Crashes
//
// A suite and a build are written to a temporary folder beside their place,
// synced, and renamed. After a crash or a full disk the folder is the old one, or
// absent, or the new one whole.
//
// # Units and concurrency
//
// Sizes of files and limits are bytes. Lines count from 1 and are those of the
// person's file, a header included. Nothing here starts a goroutine or reads a
// clock. Functions may be called concurrently for different folders.
package data
