package runcmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
	"github.com/hanzoai/link/spool/canon"
)

// maxInput bounds an input's file, in bytes.
const maxInput = 1 << 20

// enqueue reads an input, sends the folders that it names and asks the node. What can be
// known to be refused is refused before anything is hashed or sent; the control plane
// judges again.
func enqueue(ctx context.Context, streams term.IO, client *api.Client, node, kind, path string) (api.Activity, error) {
	src, err := readInput(path)
	if err != nil {
		return api.Activity{}, err
	}
	var w work
	if kind == policy.TrainFit {
		if w, err = prepare(src, path); err != nil {
			return api.Activity{}, err
		}
	}
	nodes, err := client.Workers(ctx)
	if err != nil {
		return api.Activity{}, err
	}
	if err := known(node, nodes); err != nil {
		return api.Activity{}, err
	}
	if err := judge(nodes, node, kind, w.input); err != nil {
		return api.Activity{}, explain(err, node, kind)
	}
	if kind == policy.TrainFit {
		progress := term.NewProgress(streams.Err)
		src, err = w.send(ctx, progress, client)
		progress.Done()
		if err != nil {
			return api.Activity{}, err
		}
	}
	act, err := client.Enqueue(ctx, api.Enqueue{Node: node, Kind: kind, Input: src})
	if p, answered := errors.AsType[*api.Problem](err); answered && p.Code != "" { // and by no proxy
		return act, explain(err, node, kind)
	}
	if retry, _ := api.Retryable(err); retry {
		return act, fmt.Errorf("%w: whether it was asked is not known, hanzo activities --node %s shows it", err, node)
	}
	return act, err
}

// judge says what the control plane would say of a node by the record of it that it
// gave, in its order and its words: nothing was asked yet.
func judge(nodes []api.Worker, node, kind string, in policy.TrainFitInput) error {
	w := nodes[slices.IndexFunc(nodes, func(w api.Worker) bool { return w.ID == node })]
	if len(w.Policy) == 0 || string(w.Policy) == "null" {
		return fmt.Errorf("%s takes no work: it is linked for presence only, or has no policy that can be read (hanzo doctor says which, there)", node)
	}
	if kind != policy.TrainFit {
		return nil // nothing is sent for it, and who may ask is not known here
	}
	own, err := policy.Parse(w.Policy)
	if err != nil {
		return nil // of a later version, perhaps
	}
	org, _, _ := strings.Cut(w.LinkedBy, "/") // ours, as its node is
	err = own.Admit(in.Ask("", org), policy.Held{Count: len(w.Workloads)})
	if denied, ok := errors.AsType[policy.Denied](err); ok {
		p := api.Refuse(api.Denied, "the node's policy refuses by rule %s: %s", denied.Rule, denied.Reason)
		p.Rule = denied.Rule
		return p
	}
	if err == nil && !slices.Contains(w.Offers, kind) {
		p := api.Refuse(api.Denied, "the node's policy admits %s, and the node cannot run it now: hanzo doctor says there why", kind)
		p.Rule = "offers"
		return p
	}
	if err == nil && w.Status != api.Online {
		return api.Refuse(api.NodeOffline, "node %s has not asked for work for %d s", w.ID, api.OnlineFor)
	}
	return err
}

// explain adds to a refusal what to do about it.
func explain(err error, node, kind string) error {
	p, ok := errors.AsType[*api.Problem](err)
	if !ok {
		return err
	}
	text := term.Plain(p.Detail)
	switch p.Code {
	case api.Denied:
		if _, reason, found := strings.Cut(text, "by rule "+p.Rule+": "); found {
			text = reason
		}
		if size := strings.TrimPrefix(p.Rule, "caps."); size == "memory" || size == "disk" || size == "vram" {
			text = number.ReplaceAllStringFunc(text, sized)
		}
		advice := fmt.Sprintf("the owner of %s decides that", node)
		switch {
		case p.Rule == "kind":
			advice += ": there, sudo hanzo policy allow " + kind
		case p.Rule == "offers":
			advice = "hanzo doctor says why, there"
		case p.Rule == "concurrency":
			advice = "wait for what runs there, or hanzo cancel it"
		case strings.HasPrefix(p.Rule, "caps."):
			advice += fmt.Sprintf(": ask for less, or there, sudo hanzo policy allow %s --%s SIZE", kind, strings.TrimPrefix(p.Rule, "caps."))
		}
		return fmt.Errorf("%s refuses, by rule %s: %s; %s", node, p.Rule, text, advice)
	case api.NodeOffline:
		return fmt.Errorf("%s is offline: hanzo status says why, there (%s)", node, text)
	}
	return err
}

var number = regexp.MustCompile(`\b[0-9]{4,16}\b`)

// sized is a number of bytes with its size for a person, who can compare that.
func sized(digits string) string {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return digits
	}
	s := term.Bytes(n)
	if back, err := term.ParseBytes(s); err == nil && back == n {
		return s
	}
	return fmt.Sprintf("%s (%s bytes)", s, digits)
}

// known says of a name that is no node's which there are.
func known(node string, nodes []api.Worker) error {
	var names []string
	for _, n := range nodes {
		if n.ID == node {
			return nil
		}
		names = append(names, n.ID)
	}
	if len(names) == 0 {
		return term.Usagef("there is no node %.80q, for your org has no linked machine: run hanzo link on one of yours", node)
	}
	return term.Usagef("there is no node %.80q; your org's are %s", node, strings.Join(names, ", "))
}

func readInput(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, term.Usagef("--input: %w", err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("the input: %w", err)
	}
	if len(src) > maxInput {
		return nil, term.Usagef("%s has over %d bytes: it is no input", path, maxInput)
	}
	if _, err := canon.Members(src); err != nil {
		return nil, term.Usagef("%s: %w", path, err)
	}
	return src, nil
}

// A work is an input of train.fit that was read, with the folders in it.
type work struct {
	members []canon.Member
	folders map[string]folder // by the member's name
	input   policy.TrainFitInput
}

type folder struct {
	dir   string
	files []policy.TreeFile // without their sums
}

// holds is the file without which a folder is not what its member says.
var holds = map[string]string{"stage": "stage.json", "base": "kai.json"}

// prepare looks at an input and at the folders that it names: what is wrong with it is
// found before anything is sent.
func prepare(src []byte, path string) (work, error) {
	members, err := canon.Members(src)
	if err != nil {
		return work{}, term.Usagef("%s: %w", path, err)
	}
	w := work{members: members, folders: make(map[string]folder)}
	stand := strings.Repeat("0", 64)
	for i, m := range members {
		var value string
		if holds[m.Name] == "" || canon.Unmarshal(m.Value, &value) != nil || canon.SHA256(value).Valid() {
			continue
		}
		if !filepath.IsAbs(value) {
			value = filepath.Join(filepath.Dir(path), value)
		}
		w.folders[m.Name] = folder{dir: value}
		members[i].Value = canon.Raw(`"` + stand + `"`)
	}
	if w.input, err = policy.ParseTrainFit(object(members)); err != nil {
		return work{}, term.Usagef("%s: %w", path, err)
	}
	for _, name := range []string{"stage", "base"} {
		f, given := w.folders[name]
		if !given {
			continue
		}
		if f.files, err = list(f.dir); err != nil {
			return work{}, fmt.Errorf("%s %s: %w", name, f.dir, err)
		}
		if !slices.ContainsFunc(f.files, func(t policy.TreeFile) bool { return t.Path == holds[name] }) {
			return work{}, term.Usagef("%s %s: it has no %s, so it is no %s", name, f.dir, holds[name], name)
		}
		w.folders[name] = f
	}
	return w, nil
}

// send puts the hash of its tree in the place of each folder, and sends what of it the
// control plane does not have.
func (w work) send(ctx context.Context, progress *term.Progress, client *api.Client) ([]byte, error) {
	for i, m := range w.members {
		f, given := w.folders[m.Name]
		if !given {
			continue
		}
		hash, err := sendTree(ctx, progress, client, m.Name, f)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", m.Name, f.dir, err)
		}
		w.members[i].Value = canon.Raw(`"` + hash + `"`)
	}
	return object(w.members), nil
}

// object writes members as one object.
func object(members []canon.Member) []byte {
	var b strings.Builder
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := canon.Marshal(m.Name)
		if err != nil {
			panic("runcmd: a name that was read does not write: " + err.Error())
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(m.Value)
	}
	return []byte("{" + b.String() + "}")
}

// sendTree sends a folder and answers its tree's name.
func sendTree(ctx context.Context, progress *term.Progress, client *api.Client, what string, from folder) (string, error) {
	files := from.files
	var total, done int64
	for _, f := range files {
		total += f.Size
	}
	root, err := os.OpenRoot(from.dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	where := make(map[string]policy.TreeFile)
	for i := range files {
		f := &files[i]
		if f.SHA256, err = sum(ctx, root, f.Path, func(n int64) {
			done += n
			progress.Show(fmt.Sprintf("hashing %s: %s of %s", what, term.Bytes(done), term.Bytes(total)))
		}); err != nil {
			return "", err
		}
		where[f.SHA256] = *f
	}
	if err := policy.CheckTree(files); err != nil {
		return "", term.Exit(term.Usage, err)
	}
	hash := policy.TreeHash(files)
	tree := api.Tree{}
	for _, f := range files {
		tree.Files = append(tree.Files, api.TreeFile(f))
	}
	var stored api.TreeStored
	if err := patiently(ctx, func() (err error) { stored, err = client.PutTree(ctx, hash, tree); return err }); err != nil {
		return "", err
	}
	done, total = 0, 0
	for _, sum := range stored.Missing {
		total += where[sum].Size
	}
	for i, sum := range stored.Missing {
		f, ours := where[sum]
		if !ours {
			return "", fmt.Errorf("the control plane asks for %.80q, which is no file of it", sum)
		}
		began := done
		if err := patiently(ctx, func() error {
			done = began
			return sendFile(ctx, client, root, f, func(n int64) {
				done += n
				progress.Show(fmt.Sprintf("sending %s: %s of %s, file %d of %d", what, term.Bytes(done), term.Bytes(total), i+1, len(stored.Missing)))
			})
		}); err != nil {
			return "", fmt.Errorf("sending %s: %w", f.Path, err)
		}
		done = began + f.Size
	}
	if sent := len(stored.Missing); sent > 0 {
		progress.Say("%s: sent %d of %d files, %s; its tree is %s", what, sent, len(files), term.Bytes(total), hash)
	}
	return hash, nil
}

// list names the files of a folder. A link is refused: what it leads to may be no part
// of the folder, and a tree has no links.
func list(dir string) ([]policy.TreeFile, error) {
	var files []policy.TreeFile
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("is a file; give the folder that it is in, or a tree's hash")
	}
	if err != nil {
		return nil, term.Exit(term.Usage, err)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || entry.IsDir() || name == "." {
			return err
		}
		name = filepath.ToSlash(name)
		if !entry.Type().IsRegular() {
			return term.Usagef("%s is no regular file (%s): a tree holds nothing else", name, entry.Type())
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files = append(files, policy.TreeFile{Path: name, Size: info.Size()})
		if len(files) > api.MaxTreeFiles {
			return term.Usagef("it has over %d files", api.MaxTreeFiles)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = term.Usagef("it has no file")
	}
	if err == nil {
		probe := make([]policy.TreeFile, len(files)) // names first: hashing takes long
		for i, f := range files {
			probe[i] = policy.TreeFile{Path: f.Path, SHA256: strings.Repeat("0", 64), Size: f.Size}
		}
		err = term.Exit(term.Usage, policy.CheckTree(probe))
	}
	return files, err
}

// sum is a file's SHA-256; it must keep its size, which the tree says.
func sum(ctx context.Context, root *os.Root, name string, read func(int64)) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &counted{ctx, f, read}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func sendFile(ctx context.Context, client *api.Client, root *os.Root, f policy.TreeFile, read func(int64)) error {
	file, err := root.Open(f.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	return client.PutBlob(ctx, f.SHA256, f.Size, &counted{ctx, io.LimitReader(file, f.Size), read})
}

// counted tells how much is read, and stops when ctx ends.
type counted struct {
	ctx  context.Context
	r    io.Reader
	read func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	if n > 0 {
		c.read(int64(n))
	}
	return n, err
}

// patiently makes a call that may be repeated until it is answered, at most a few
// times.
func patiently(ctx context.Context, call func() error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := call()
		retry, after := api.Retryable(err)
		if !retry || try == tries {
			return err
		}
		if err := pause(ctx, max(after, time.Duration(try)*time.Second)); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
