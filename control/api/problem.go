package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// Code names why a request was refused. The set is closed: HIP-1334's codes, those
// that any HTTP service needs, and, for the rules of an event, those of package
// event, whose refusals bring their status along.
type Code string

const (
	Invalid      Code = "invalid"       // the body, a query or a path is not what the route takes
	InvalidEvent Code = "invalid_event" // an event is malformed or its event_id is not its hash

	Unauthorized Code = "unauthorized" // no bearer token, or one this server does not know

	Forbidden Code = "forbidden" // the token is known, and this is not its to do

	GrantInvalid Code = "grant_invalid" // an upload address that this server did not sign
	GrantExpired Code = "grant_expired" // signed, and too old: register again
	GrantUsed    Code = "grant_used"    // the bytes of this grant are already held

	NotFound         Code = "not_found"
	MethodNotAllowed Code = "method_not_allowed"
	Timeout          Code = "timeout" // the request came too slowly

	Exists        Code = "exists"         // a caller-named id written again with different content
	Sealed        Code = "sealed"         // the dataset takes no more items; with status 403, bytes or inputs that are never served
	Referenced    Code = "referenced"     // a run attached the dataset
	EventConflict Code = "event_conflict" // another event is stored at this seq
	SeqGap        Code = "seq_gap"        // an event past the next one expected
	StepDiverged  Code = "step_diverged"  // a repeated step differs from the one recorded
	RunCompleted  Code = "run_completed"  // an event after RUN_COMPLETED
	GateDisagrees Code = "gate_disagrees" // the server's verdict differs from the event's

	RangeInvalid Code = "range_invalid" // a range of bytes that the file does not have

	TooLarge Code = "too_large" // the body or the batch is over the route's limit: send less at once

	PurposeRefused    Code = "purpose_refused"    // the purpose disagrees with its dataset, its parents or its role
	DerivationRefused Code = "derivation_refused" // nothing is derived from eval_only or sealed_eval
	Contaminated      Code = "contaminated"       // a training item equals an evaluation item
	AddressMismatch   Code = "address_mismatch"   // the bytes do not hash to the address
	LengthMismatch    Code = "length_mismatch"    // the bytes are not as many as declared
	UnknownParent     Code = "unknown_parent"     // a parent that the org does not hold
	NotSealed         Code = "not_sealed"         // the dataset is open, or sealed at another hash
	NotStored         Code = "not_stored"         // the artifact is registered and its bytes have not come
	GateUnknown       Code = "gate_unknown"       // no such gate is stored
	BadVersion        Code = "bad_version"        // version and previous do not follow the stored gate
	BadGate           Code = "bad_gate"           // a rule that no evaluation could decide
	BadEnvironment    Code = "bad_environment"    // the artifact that a report names is no environment
	NotGated          Code = "not_gated"          // sealed scoring without a gate on that dataset
	Miscounted        Code = "miscounted"         // questions or answered are not what the server counts

	Denied            Code = "denied"             // the node's policy refuses; rule says by which of its rules
	Conflict          Code = "conflict"           // the node's id belongs to another install
	NodeOffline       Code = "node_offline"       // the node has not claimed for 90 s
	Serving           Code = "serving"            // the node serves that model already
	IllegalTransition Code = "illegal_transition" // the activity does not go from its state to that one
	Gone              Code = "gone"               // the node was removed, or the activity cancelled
	RateLimited       Code = "rate_limited"       // too many enqueues of one requester

	Internal    Code = "internal"    // the server's fault: nothing was stored
	Unavailable Code = "unavailable" // stopping, or its disk is full: try again
)

// statuses is the one table from code to HTTP status.
var statuses = map[Code]int{
	Invalid:      http.StatusBadRequest,
	InvalidEvent: http.StatusBadRequest,

	Unauthorized: http.StatusUnauthorized,

	Forbidden: http.StatusForbidden,

	GrantInvalid: http.StatusForbidden,
	GrantExpired: http.StatusForbidden,
	GrantUsed:    http.StatusConflict,

	NotFound:         http.StatusNotFound,
	MethodNotAllowed: http.StatusMethodNotAllowed,
	Timeout:          http.StatusRequestTimeout,

	Exists:        http.StatusConflict,
	Sealed:        http.StatusConflict,
	Referenced:    http.StatusConflict,
	EventConflict: http.StatusConflict,
	SeqGap:        http.StatusConflict,
	StepDiverged:  http.StatusConflict,
	RunCompleted:  http.StatusConflict,
	GateDisagrees: http.StatusConflict,

	RangeInvalid: http.StatusRequestedRangeNotSatisfiable,

	TooLarge: http.StatusRequestEntityTooLarge,

	PurposeRefused:    http.StatusUnprocessableEntity,
	DerivationRefused: http.StatusUnprocessableEntity,
	Contaminated:      http.StatusUnprocessableEntity,
	AddressMismatch:   http.StatusUnprocessableEntity,
	LengthMismatch:    http.StatusUnprocessableEntity,
	UnknownParent:     http.StatusUnprocessableEntity,
	NotSealed:         http.StatusUnprocessableEntity,
	NotStored:         http.StatusUnprocessableEntity,
	GateUnknown:       http.StatusUnprocessableEntity,
	BadVersion:        http.StatusUnprocessableEntity,
	BadGate:           http.StatusUnprocessableEntity,
	BadEnvironment:    http.StatusUnprocessableEntity,
	NotGated:          http.StatusUnprocessableEntity,
	Miscounted:        http.StatusUnprocessableEntity,

	Denied:            http.StatusForbidden,
	Conflict:          http.StatusConflict,
	NodeOffline:       http.StatusConflict,
	Serving:           http.StatusConflict,
	IllegalTransition: http.StatusConflict,
	Gone:              http.StatusGone,
	RateLimited:       http.StatusTooManyRequests,

	Internal:    http.StatusInternalServerError,
	Unavailable: http.StatusServiceUnavailable,
}

// Status returns the HTTP status of c, 500 for a code outside the table.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Problem is a refusal: an RFC 9457 problem document with a code. It is the
// error that every method of [Client] returns when a server answered.
type Problem struct {
	Type   string `json:"type"`   // always about:blank: code says more
	Title  string `json:"title"`  // the status in words
	Status int    `json:"status"` // the HTTP status
	Code   Code   `json:"code"`
	Detail string `json:"detail"` // what was refused, where in the request, and what to do

	// Rule is the policy's rule that refused, when the code is denied.
	Rule string `json:"rule,omitzero"`

	// Batch and Seq are set when an append of events is refused: what was applied
	// before the refusal, and the seq of the event refused.
	Batch *Appended `json:"batch,omitzero"`
	Seq   uint64    `json:"seq,omitzero"`

	// RetryAfter is the answer's Retry-After header; zero when it had none.
	RetryAfter time.Duration `json:"-"`
}

// Refuse makes the problem of code, with the status of the table.
func Refuse(code Code, format string, args ...any) *Problem {
	return &Problem{
		Type:   "about:blank",
		Title:  http.StatusText(code.Status()),
		Status: code.Status(),
		Code:   code,
		Detail: fmt.Sprintf(format, args...),
	}
}

// Error says what the server said, for a person.
func (p *Problem) Error() string {
	if p.Code == "" { // no control plane's
		return fmt.Sprintf("answered %d %s: %s", p.Status, p.Title, p.Detail)
	}
	return fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Detail)
}

// Is reports whether the control plane itself refused with this code, and the status of
// the table. The page of a proxy has no code, and what one changes is not believed.
func Is(err error, code Code) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Code == code && p.Status == code.Status()
}

// GetStatus is the HTTP status, under the name that the server's framework asks for.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is RFC 9457's, whatever was negotiated.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// After says when to try again; it becomes the answer's Retry-After, in whole
// seconds, rounded up.
func (p *Problem) After(d time.Duration) *Problem {
	p.RetryAfter = d
	return p
}

// GetHeaders are the headers that p is sent with, under the name that the server's
// framework asks for.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	return h
}

// With gives p another status than the table's: sealed is 409 to a write and 403
// to a read.
func (p *Problem) With(status int) *Problem {
	p.Status, p.Title = status, http.StatusText(status)
	return p
}

// Write sends p as the whole answer.
func (p *Problem) Write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		panic("api: a Problem that does not encode: " + err.Error())
	}
	maps.Copy(w.Header(), p.GetHeaders())
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	w.Write(body)
}
