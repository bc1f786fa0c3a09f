package install

import (
	"errors"
)

// ErrManifest marks what only another manifest, or another preparer, mends.
var ErrManifest = errors.New("unusable manifest")

// lasting is an error of something that trying again does not mend by itself.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

func forGood(err error) error { return lasting{err} }

// Hopeless reports whether an error is about something that trying again does not mend by itself: an artifact that is refused or not
// there, a manifest that is wrong or that the node does not trust, a program that is missing. One about what may be over in a
// moment, such as a server that does not answer, a port that is taken or a disk that is full, is not.
func Hopeless(err error) bool {
	var l lasting
	var r interface{ Refused() bool } // what Artifacts returns of an artifact that is not there, or not what the manifest says
	return errors.As(err, &l) || errors.Is(err, ErrManifest) || errors.As(err, &r) && r.Refused()
}
