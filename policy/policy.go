// Package policy is the owner's consent: the file in which the owner of a linked
// machine says what a cloud may start on it, and the questions asked of that file.
//
// The file is [Path], owned by root. Nothing that comes over a network changes
// it, and its schema is closed (HIP-1172 A3): a field this package does not know,
// a wrong type, a value out of range, and the machine offers nothing. The kinds
// are the three of HIP-1172 and one of ours, [TrainFit].
//
// Reading it is the part that touches the machine: [ReadTrusted] decides whether
// the file can be anybody's but root's, [Load] parses it, [Watch] does both again
// whenever it changes. The rest is pure: [Parse], [Policy.Admit] and
// [Policy.Capacity] take values and return values, so that the agent, the
// launcher and the cloud's mirror judge alike, and the launcher need believe
// neither of the other two.
//
// # What is absent
//
// A field that is absent has its default, and each default admits nothing or
// little: no kind, caps of 0, one workload at once. A member that is null is a
// fault, not absent. An absent file is not an empty one: it is an error, and the
// caller offers nothing. The zero Policy admits nothing.
//
// This package does not say what a workload may see (package sandbox) and does
// not start, stop or count work (package launcher).
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hanzoai/link/spool/canon"
)

// Path is where the policy of a linked machine lies.
const Path = "/etc/hanzo/link/policy.json"

// MaxSize is the largest policy file that is read, in bytes. One that names a
// thousand models is a twentieth of it.
const MaxSize = 1 << 20

// The kinds of work that a policy can admit.
const (
	EngineServe  = "engine.serve"
	StudioRender = "studio.render"
	FnRun        = "fn.run"
	TrainFit     = "train.fit" // see TrainFitInput
)

var kinds = []string{EngineServe, StudioRender, FnRun, TrainFit}

// The highest numbers a policy or an input may hold. Every number is a whole one
// from 0, or from the least its field states. Within these limits the sums and
// seconds made of them overflow nothing.
const (
	maxBytes       = 1 << 53 // 8 PiB, and the last integer that a float64 reader of the mirror keeps
	maxCPUs        = 1 << 10
	maxConcurrency = 1 << 10
	maxSeconds     = 366 * 24 * 3600 // a year
)

// Policy is what the owner admits. [Parse] makes one; the zero Policy admits
// nothing. It is not changed once made, and may then be read concurrently.
type Policy struct {
	// Kinds of work the machine runs; none: no work.
	Kinds []string `json:"kinds"`
	// Orgs whose work it takes, compared byte for byte. Nil when the file does
	// not say: HIP-1172's default is then the org that the machine is linked to,
	// which this package cannot know and an unprivileged agent could lie about,
	// so a nil Orgs admits none until a caller that does know sets it. The file
	// that hanzo link writes says it.
	Orgs []string `json:"orgs"`
	// Sources that models may come from; absent, the Zen weights of HIP-0904.
	Sources []Source `json:"sources"`
	// Models are repositories, host/owner/name, or single commits of one,
	// host/owner/name@<40 hex>. Empty admits every model under a source.
	Models []string `json:"models"`
	// Caps bound what running work holds together; 0 admits nothing.
	Caps Caps `json:"caps"`
	// Concurrency is how many workloads may run at once, of every kind together;
	// absent 1, and 0 admits nothing.
	Concurrency int `json:"concurrency"`
	// IdleSec is how long any workload may idle, in seconds; absent 600.
	IdleSec int `json:"idleSec"`
	// MaxSec is how long any workload may live, idle or not, in seconds; absent
	// 86400.
	MaxSec int `json:"maxSec"`
}

// Source is where models may come from.
type Source struct {
	// Prefix is a host and a path that end in a slash, so that the prefix of one
	// owner is not also that of another whose name begins the same:
	// "huggingface.co/zenlm/".
	Prefix string `json:"prefix"`
	// Hosts that a download from it may be redirected to; see [Source.AdmitsHost].
	Hosts []string `json:"hosts"`
}

// Caps are amounts of what workloads hold: bytes of accelerator memory, bytes of
// memory, logical cores, bytes of the store's file system.
type Caps struct {
	VRAM   int64 `json:"vram,omitzero"`
	Memory int64 `json:"memory,omitzero"`
	CPUs   int   `json:"cpus,omitzero"`
	Disk   int64 `json:"disk,omitzero"`
}

// file is Policy as the owner writes it, in which anything may be absent. Policy
// itself is written whole: an omitted 0 would read back as a default above it.
type file struct {
	Kinds       []string `json:"kinds,omitzero"`
	Orgs        []string `json:"orgs,omitzero"`
	Sources     []Source `json:"sources,omitzero"`
	Models      []string `json:"models,omitzero"`
	Caps        Caps     `json:"caps,omitzero"`
	Concurrency int      `json:"concurrency,omitzero"`
	IdleSec     int      `json:"idleSec,omitzero"`
	MaxSec      int      `json:"maxSec,omitzero"`
}

// Parse reads a policy file's text. Its errors name the field as a JSON pointer
// and say what would be right.
func Parse(src []byte) (Policy, error) {
	if len(strings.TrimSpace(string(src))) == 0 {
		return Policy{}, errors.New("the file is empty; write at least {}, which admits nothing")
	}
	var f file
	if err := canon.Unmarshal(src, &f); err != nil {
		return Policy{}, place(src, err)
	}
	members, err := canon.Members(src)
	if err != nil {
		return Policy{}, err
	}
	p := Policy(f)
	absent := func(name string) bool {
		return !slices.ContainsFunc(members, func(m canon.Member) bool { return m.Name == name })
	}
	if absent("sources") {
		p.Sources = []Source{{Prefix: "huggingface.co/zenlm/", Hosts: []string{"huggingface.co", "*.hf.co"}}}
	}
	if absent("concurrency") {
		p.Concurrency = 1
	}
	if absent("idleSec") {
		p.IdleSec = 600
	}
	if absent("maxSec") {
		p.MaxSec = 86400
	}
	if err := p.check(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// Mend is what to do about a policy that cannot be read.
const Mend = "mend it there, or move it away and run sudo hanzo link, which writes one that admits nothing"

// place says of a text that is no JSON on which line and at which byte it ends to be.
func place(src []byte, err error) error {
	var syntax *json.SyntaxError
	if !strings.HasSuffix(err.Error(), ")") || !strings.Contains(err.Error(), "(byte ") || !errors.As(json.Unmarshal(src, new(any)), &syntax) || syntax.Offset < 1 || syntax.Offset > int64(len(src)) {
		return err
	}
	at := int(syntax.Offset) - 1
	before := src[:at]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := at - bytes.LastIndexByte(before, '\n')
	switch {
	case strings.HasPrefix(syntax.Error(), "unexpected end"):
		err = errors.New("it ends too early: a } or ] or a quote is missing")
	case src[at] == '\n' && strings.HasSuffix(syntax.Error(), "in string literal"):
		err = errors.New("a string does not end: its closing quote is missing")
	default:
		text, _, _ := strings.Cut(err.Error(), " (byte ") // of the whole
		err = errors.New(text)
	}
	return fmt.Errorf("line %d, byte %d of it, is no JSON: %w", line, column, err)
}

// The shapes of what a policy names. Hosts are lower case: two spellings of one
// host would be two hosts to whoever compares them.
var (
	orgShape   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	labelShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	// segmentShape is HIP-1172 A6's, for models, their files and our trees. Its
	// users refuse "." and ".." beside it.
	segmentShape = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)
	commitShape  = regexp.MustCompile(`^[0-9a-f]{40}$`)
	hashShape    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (p Policy) check() error {
	lists := []struct {
		name   string
		values []string
		fault  func(string) string // "" when the value may stand
	}{
		{"kinds", p.Kinds, kindFault},
		{"orgs", p.Orgs, orgFault},
		{"models", p.Models, modelFault},
	}
	for _, l := range lists {
		if err := checkList("/"+l.name, l.values, l.fault); err != nil {
			return err
		}
	}
	for i, s := range p.Sources {
		at := fmt.Sprintf("/sources/%d", i)
		if fault := prefixFault(s.Prefix); fault != "" {
			return refuse(at+"/prefix", "%.80q %s", s.Prefix, fault)
		}
		if err := checkList(at+"/hosts", s.Hosts, hostFault); err != nil {
			return err
		}
	}
	return checkNumbers([]number{
		{"/caps/vram", p.Caps.VRAM, 0, maxBytes},
		{"/caps/memory", p.Caps.Memory, 0, maxBytes},
		{"/caps/cpus", int64(p.Caps.CPUs), 0, maxCPUs},
		{"/caps/disk", p.Caps.Disk, 0, maxBytes},
		{"/concurrency", int64(p.Concurrency), 0, maxConcurrency},
		{"/idleSec", int64(p.IdleSec), 0, maxSeconds},
		{"/maxSec", int64(p.MaxSec), 0, maxSeconds},
	})
}

func refuse(pointer, format string, args ...any) error {
	return &canon.Error{Pointer: pointer, Err: fmt.Errorf(format, args...)}
}

func checkList(pointer string, values []string, fault func(string) string) error {
	seen := make(map[string]bool, len(values))
	for i, v := range values {
		at := fmt.Sprintf("%s/%d", pointer, i)
		if f := fault(v); f != "" {
			return refuse(at, "%.80q %s", v, f)
		}
		if seen[v] {
			return refuse(at, "%.80q stands twice", v)
		}
		seen[v] = true
	}
	return nil
}

type number struct {
	pointer               string
	value, least, highest int64
}

func checkNumbers(numbers []number) error {
	for _, n := range numbers {
		if n.value < n.least || n.value > n.highest {
			return refuse(n.pointer, "%d is not within %d to %d", n.value, n.least, n.highest)
		}
	}
	return nil
}

func kindFault(kind string) string {
	if !slices.Contains(kinds, kind) {
		return fmt.Sprintf("is no kind; kinds are %q", kinds)
	}
	return ""
}

func orgFault(org string) string {
	if !orgShape.MatchString(org) {
		return "is no org's name: 1 to 63 of A-Z a-z 0-9 . _ -, the first a letter or digit"
	}
	return ""
}

// hostFault judges a host of Source.Hosts. A wildcard stands under a domain of two
// labels at least, for *.co would be every company's.
func hostFault(pattern string) string {
	host, wild := strings.CutPrefix(pattern, "*.")
	if !validHost(host) {
		return "is no host: a lower-case name such as huggingface.co, or *.hf.co for every name under hf.co"
	}
	if wild && !strings.Contains(host, ".") {
		return "is every host of a top-level domain; name more of it"
	}
	return ""
}

// validHost reports whether host is a lower-case DNS name. An IPv4 address is
// none, for a name's last label is never a number.
func validHost(host string) bool {
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if !labelShape.MatchString(l) {
			return false
		}
	}
	return len(host) <= 253 && strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

func validSegment(s string) bool {
	return segmentShape.MatchString(s) && s != "." && s != ".."
}

func prefixFault(prefix string) string {
	path, ok := strings.CutSuffix(prefix, "/")
	if !ok {
		return "does not end in a slash, so it would also admit owners whose names begin the same"
	}
	host, path, deeper := strings.Cut(path, "/")
	if !validHost(host) || deeper && !validSegments(path) {
		return "is no host and path, such as huggingface.co/zenlm/"
	}
	return ""
}

// validSegments bounds a path as a whole too, so that an error that quotes eight of
// them fits a packet of the launcher's.
func validSegments(path string) bool {
	return len(path) <= 1024 && !slices.ContainsFunc(strings.Split(path, "/"), func(s string) bool { return !validSegment(s) })
}

func modelFault(model string) string {
	repository, commit, pinned := strings.Cut(model, "@")
	if pinned && !commitShape.MatchString(commit) {
		return "is not pinned by 40 lower-case hex digits of a commit after its @"
	}
	host, path, ok := strings.Cut(repository, "/")
	if !ok || !validHost(host) || !validSegments(path) {
		return "is no repository, such as huggingface.co/owner/name"
	}
	return ""
}

// AdmitsHost reports whether a download from this source may be redirected to a
// host, given without a port. A host that begins "*." admits every name under it,
// however many labels deep, and not the name itself: *.hf.co admits cdn.hf.co
// and us.aws.cdn.hf.co, and neither hf.co, evilhf.co nor hf.co.attacker.net.
// Upper case is folded, as DNS does; a trailing dot, an address and whatever else
// is no host name are admitted by nothing.
func (s Source) AdmitsHost(host string) bool {
	host = strings.ToLower(host)
	return validHost(host) && slices.ContainsFunc(s.Hosts, func(pattern string) bool {
		if under, wild := strings.CutPrefix(pattern, "*"); wild {
			return strings.HasSuffix(host, under) // under keeps its dot
		}
		return host == pattern
	})
}

// SourceOf returns the first source that a model, with or without its commit, is
// under.
func (p Policy) SourceOf(model string) (Source, bool) {
	if modelFault(model) != "" { // a prefix of a path with ".." in it says nothing
		return Source{}, false
	}
	i := slices.IndexFunc(p.Sources, func(s Source) bool { return strings.HasPrefix(model, s.Prefix) })
	if i < 0 {
		return Source{}, false
	}
	return p.Sources[i], true
}
