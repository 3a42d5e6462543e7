// Package api is what the control plane and its clients share: the wire types
// of every route, [Problem] with its closed table of codes, and [Client].
//
// The objects that both sides must judge alike (datasets, artifacts, gates,
// events, evaluations) are not here: they are types of spool/record, spool/gate
// and spool/event, and this package only says how they travel.
//
// # Routes
//
// All are under the bearer token's org; no path, query or body names an org. An
// id that another org holds answers exactly as an unknown one.
//
//	GET    /v1/iam/oauth/userinfo                whom the token speaks for
//	POST   /v1/research/datasets                 create, open
//	GET    /v1/research/datasets                 list: purpose, benchmark
//	GET    /v1/research/datasets/{id}            one
//	DELETE /v1/research/datasets/{id}            while no run attached it
//	POST   /v1/research/datasets/{id}/items      append, at most 20,000
//	GET    /v1/research/datasets/{id}/items      in item_id order: after, limit, run
//	POST   /v1/research/datasets/{id}/seal       seal
//	POST   /v1/research/artifacts                register, with the bytes or for a grant
//	GET    /v1/research/artifacts                list: kind, run, purpose, since
//	GET    /v1/research/artifacts/{sha256}       the bytes
//	PUT    /v1/research/uploads/{sha256}         what a grant signs; no bearer token
//	POST   /v1/research/gates                    store
//	GET    /v1/research/gates                    list: name
//	GET    /v1/research/gates/{hash}             one
//	POST   /v1/research/determinism              store a report; its environment is stored
//	GET    /v1/research/determinism              list: environment
//	POST   /v1/research/runs/{id}/events         append, at most 1,000
//	GET    /v1/research/runs/{id}/events         the log: after, limit
//	GET    /v1/research/runs/{id}                the view
//	GET    /v1/research/runs                     list: kind, status, tag, job, since, until
//	GET    /v1/research/evaluations              list: run, dataset, subject, purpose
//	GET    /v1/research/evaluations/{id}         one
//
// Below /v1/compute/fleet, of HIP-1172's Amendment; a person's token opens what is
// marked p and a node's credential what is marked n, of its own node and nothing
// else:
//
//	PUT    …/workers/{id}                        pn register, refresh
//	GET    …/workers                             p  list
//	DELETE …/workers/{id}                        pn remove, and end its credential
//	POST   …/workers/{id}/claim                  n  wait for work: a long poll
//	POST   …/activities                          p  ask a node for work
//	GET    …/activities                          p  list: node, state, after, limit
//	GET    …/activities/{activity}               p  one
//	DELETE …/activities/{activity}               p  cancel
//	GET    …/events                              p  the four compute.workload events: after, wait
//	PUT    …/trees/{hash}                        p  what files an input has
//	PUT    …/blobs/{sha256}                      p  one file's bytes
//
// and below …/workers/{id}/activities/{activity}, for the node that it is on:
//
//	POST   …/state                               n  report a transition, or the end
//	GET    …/trees/{hash}                        n  the files of a tree that it names, while it lives
//	GET    …/trees/{hash}/{sha256}               n  the bytes of one; Range
//	*      …/record/v1/…                         n  what an uploader of package spool/upload calls, for
//	                                                the run of the activity's name and no other
//
// No token is needed for
//
//	GET /healthz                                 whether the store answers
//	GET /openapi.json                            every route, in full
//	GET /.well-known/openid-configuration        {"issuer": …}: where people sign in; 404 where they do not
//
// userinfo is the one route of the identity service that a client of the record
// needs: which org and project its spool belongs to. It has the name, and the
// members owner, name and project, that Hanzo IAM gives it; server beside them is
// the embedded control plane's own.
//
// What ends an evaluation on a sealed_eval dataset brings predictions only; the
// server scores them, so such an evaluation, and it alone, has measures and an
// items_sha256 that no event brought.
//
// A run's view says reference when its environment is not dirty and has an exact
// determinism report, whenever that came. No event says so.
//
// Lists answer {"data": […]} in the order the server received things, at most
// [MaxPage] a call; after names the last id of the page before.
//
// # Repeats and durability
//
// A 2xx to a write means that what it wrote is on stable storage. Every write
// may be sent again after a lost answer: the repeat changes nothing and answers
// what is stored. Repeating a caller-named id with other content is refused.
package api
