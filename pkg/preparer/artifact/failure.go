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

// final reports whether another fetch of the same file would end with the same error.
func final(err error) bool {
	return slices.ContainsFunc([]error{ErrInvalid, ErrDigest, ErrTooLarge, ErrArchive},
		func(is error) bool { return errors.Is(err, is) })
}

// gone means that the server or the node does not have the file.
type gone struct{ error }

func (g gone) Unwrap() error { return g.error }

// failed is an error of Ensure.
type failed struct{ error }

func (f failed) Unwrap() error { return f.error }

// Refused reports whether the error is about the artifact itself: the file is missing, has another digest than in the
// manifest, or may not be unpacked here. Another try ends in the same way until the file is replaced.
func (f failed) Refused() bool {
	_, missing := errors.AsType[gone](f.error)
	return missing || final(f.error)
}

// failures remembers refused artifacts, so that they are not fetched again and again. After a pause, or when a local
// file has changed, the artifact is fetched again, because an operator may have replaced the file.
type failures struct {
	least, most time.Duration // pause before the next try; it doubles after each try

	mu    sync.Mutex
	known map[string]failure // by digest and URL
}

// failure is one refusal. Its error has the time of the next try.
type failure struct {
	err     error
	pause   time.Duration
	until   time.Time
	version string // fileVersion of a local file
}

func failureKey(src source, digest string) string { return digest + " " + src.url + src.file }

func (f *failures) recall(src source, digest string, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.known[failureKey(src, digest)]
	if !ok || !now.Before(last.until) || fileVersion(src) != last.version {
		return nil
	}
	return last.err
}

// record stores how a fetch ended, and returns the error to report. It remembers final errors.
func (f *failures) record(src source, digest string, version string, err error, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, last := range f.known {
		if now.Sub(last.until) > f.most {
			delete(f.known, key) // no caller has asked for this artifact for a long time
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

// fileVersion returns text that changes when a local file changes, appears or disappears. For a URL it returns "".
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
