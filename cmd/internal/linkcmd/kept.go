package linkcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanzoai/link/activity"
)

// What a workload recorded lies in spool/<activity> of the state directory until the
// control plane has it. Of what is there for longer, because it was refused, is no
// record or could not be sent in time, this says where it is and what can be done: it
// is the owner's, and counts against caps.disk for as long as it is there.

// kept names the activities of which something is in the spool, in dir. Only root and
// the agent can look.
func kept(dir string) (ids []string) {
	entries, err := os.ReadDir(filepath.Join(dir, "spool"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if activity.ValidID(e.Name()) && e.IsDir() && !hollow(filepath.Join(dir, "spool", e.Name())) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// hollow reports whether nothing is in a directory.
func hollow(path string) bool {
	dir, err := os.Open(path)
	if err == nil {
		defer dir.Close()
		_, err = dir.Readdirnames(1)
		return errors.Is(err, io.EOF)
	}
	return errors.Is(err, fs.ErrNotExist)
}

// tellKept says what is kept, and what can be done.
func tellKept(dir, address string, ids []string) string {
	const most = 10
	named := strings.Join(ids[:min(len(ids), most)], ", ")
	if len(ids) > most {
		named += fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return fmt.Sprintf("%s/spool holds what %s left and the control plane does not have whole; it counts against caps.disk. "+
		"To send one with your token: sudo HANZO_SPOOL=%s/spool/ACTIVITY HANZO_API=%s HANZO_TOKEN_FILE=FILE train sync. "+
		"What is in a folder is yours to remove; leave the folder itself, which keeps its activity from being run again",
		dir, named, dir, cmp.Or(address, "URL"))
}
