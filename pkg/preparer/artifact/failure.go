package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"
)

// final reports whether fetching the same file again would end the same way.
func final(err error) bool {
	return slices.ContainsFunc([]error{ErrInvalid, ErrDigest, ErrTooLarge, ErrArchive}, func(is error) bool { return errors.Is(err, is) })
}

// gone marks that the server, or the node, does not have the file.
type gone struct{ error }

func (g gone) Unwrap() error { return g.error }

// failed is an error of Ensure.
type failed struct{ error }

func (f failed) Unwrap() error { return f.error }

// Refused reports whether it is about the artifact itself, so that asking again ends the same way until somebody puts another file there:
// it is not there, or is not what the manifest says, or may not be unpacked here.
func (f failed) Refused() bool {
	_, missing := errors.AsType[gone](f.error)
	return missing || final(f.error)
}

// failures remembers what was refused, so that it is not fetched again and again. Not for ever: an operator may put
// another file there. A local file that changed is tried at once.
type failures struct {
	least, most time.Duration // pause before the next try; it doubles with each

	mu    sync.Mutex
	known map[string]failure // by digest and URL
}

// failure is one refusal. Its error says when the file is looked at again, so that it reads the same until then.
type failure struct {
	err     error
	pause   time.Duration
	until   time.Time
	version string // of a local file
}

func failureKey(src source, digest string) string { return digest + " " + src.url + src.file }

// recall returns the remembered error while the pause lasts.
func (f *failures) recall(src source, digest string, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.known[failureKey(src, digest)]
	if !ok || !now.Before(last.until) || fileVersion(src) != last.version {
		return nil
	}
	return last.err
}

// record takes in how a fetch ended and returns the error to report. Any end but a final error leaves things open.
func (f *failures) record(src source, digest string, version string, err error, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, last := range f.known {
		if now.Sub(last.until) > f.most {
			delete(f.known, key) // nobody asked for it in a long time
		}
	}
	key := failureKey(src, digest)
	if !final(err) {
		delete(f.known, key)
		return err
	}
	pause := f.least
	if last, again := f.known[key]; again && last.version == version {
		pause = min(2*last.pause, f.most)
	}
	until := now.Add(pause)
	err = fmt.Errorf("%w; not fetched again before %s", err, until.UTC().Format(time.RFC3339))
	f.known[key] = failure{err: err, pause: pause, until: until, version: version}
	return err
}

// fileVersion tells versions of a local file apart. A file that is not there has one too.
func fileVersion(src source) string {
	if src.file == "" {
		return ""
	}
	info, err := os.Stat(src.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case err != nil:
		return "unreadable"
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano(), info.Mode())
}
