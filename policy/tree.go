package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// TreeFile is one regular file of a tree.
type TreeFile struct {
	Path   string // relative, slashes between segments
	SHA256 string // of its bytes, 64 lower-case hex digits
	Size   int64  // in bytes
}

// TreeHash is the name of a tree of files: the SHA-256, as 64 lower-case hex
// digits, of its listing, which has a line for each file,
//
//	<64 hex> <size in decimal> <path>\n
//
// in the ascending order of the paths' bytes. Modes, times and empty directories
// are not part of a tree. The order of files does not matter, and files is not
// changed. For files that [CheckTree] refuses it is "", which is no tree's name.
func TreeHash(files []TreeFile) string {
	if CheckTree(files) != nil {
		return ""
	}
	sum := sha256.New()
	for _, f := range slices.SortedFunc(slices.Values(files), byPath) {
		fmt.Fprintf(sum, "%s %d %s\n", f.SHA256, f.Size, f.Path)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// CheckTree says why files are no tree. There is at least one; paths are of
// segments of [A-Za-z0-9._-], at most 255 each and 1024 bytes together, neither
// "." nor ".."; no path stands twice or is a folder of another; hashes and sizes
// are what they are.
func CheckTree(files []TreeFile) error {
	if len(files) == 0 {
		return errors.New("a tree has at least one file")
	}
	known := make(map[string]bool, len(files))
	for _, f := range files {
		switch {
		case !validSegments(f.Path):
			return fmt.Errorf("%.80q is no path in a tree: segments of A-Z a-z 0-9 . _ -, neither . nor .., 1024 bytes in all", f.Path)
		case !hashShape.MatchString(f.SHA256):
			return fmt.Errorf("%s: %.80q is not 64 lower-case hex digits", f.Path, f.SHA256)
		case f.Size < 0:
			return fmt.Errorf("%s: %d is no size", f.Path, f.Size)
		case known[f.Path]:
			return fmt.Errorf("%s stands twice", f.Path)
		}
		known[f.Path] = true
	}
	for _, f := range files {
		for i, c := range f.Path {
			if c == '/' && known[f.Path[:i]] {
				return fmt.Errorf("%s is a file, so %s cannot be in it", f.Path[:i], f.Path)
			}
		}
	}
	return nil
}

func byPath(a, b TreeFile) int { return strings.Compare(a.Path, b.Path) }
