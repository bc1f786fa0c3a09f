package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

// Blob is what a manifest says about a blob.
type Blob struct {
	Digest string
	Size   int64
}

// Blob downloads a blob into a file. It keeps what the file has already, and asks for the rest. When it returns nil,
// the file has exactly the blob. After an error that a later call may mend, the file keeps what has arrived. room
// limits what is written. arrived is called with the size of the file each time it changes. Errors to test for: the
// package's, archive.ErrNoSpace, patience.ErrSlow, and the context's.
func (r *Repository) Blob(ctx context.Context, want Blob, into *os.File, room *archive.Room,
	arrived func(int64),
) error {
	d := &download{repo: r, want: want, into: into, room: room, arrived: arrived}
	if err := d.run(ctx); err != nil {
		return fmt.Errorf("download %s of %s: %w", want.Digest, r.ref.Name(), explain(err))
	}
	return nil
}

// download is the state of one download.
type download struct {
	repo    *Repository
	want    Blob
	into    *os.File
	room    *archive.Room
	arrived func(int64)

	hash     hash.Hash // of what the file has
	size     int64     // of the file
	got      int64     // bytes that the last request brought
	restarts int
}

// run downloads until the file is complete. A broken connection that brought at least patience.MinProgress does not use
// up a try. So a large blob arrives even if each connection breaks.
func (d *download) run(ctx context.Context) error {
	inherited, err := d.resume(ctx)
	if err != nil {
		return err
	}
	steps := pace{d.repo.cfg.Retries, d.repo.cfg.RetryWait, d.repo.cfg.MaxRetryWait}
	for attempt := 0; ; {
		d.got = 0
		err := d.more(ctx)
		switch {
		case err == nil:
			err = d.check()
			if !inherited || !errors.Is(err, ErrDigest) {
				return err
			}
			// A crash of the machine may have left garbage in the file.
			if inherited, err = false, d.restart(); err != nil {
				return err
			}
			continue
		case !again(err):
			return err
		case d.got >= patience.MinProgress:
			attempt = 0
		}
		pause, _ := steps.Retry(attempt, nil, err)
		if pause < 0 {
			return err
		}
		attempt++
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// again reports whether another request may bring the rest.
func again(err error) bool {
	for _, never := range []error{
		ErrAnswer, ErrRestarts, ErrDigest, archive.ErrNoSpace, archive.ErrTooLarge, auth.ErrBasicCredentialNotFound,
		errdef.ErrNotFound,
	} {
		if errors.Is(err, never) {
			return false
		}
	}
	_, answered := errors.AsType[*errcode.ErrorResponse](err) // sent again already, if that may help
	_, request := errors.AsType[requestError](err)            // as above
	_, file := errors.AsType[*fs.PathError](err)              // the node's disk
	return !answered && !request && !file && !durable.Full(err)
}

// requestError is an error of a request that was sent again already.
type requestError struct{ error }

func (r requestError) Unwrap() error { return r.error }

// resume computes the digest of what the file has. It reports whether there was anything.
func (d *download) resume(ctx context.Context) (bool, error) {
	info, err := d.into.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() > d.want.Size {
		return false, d.restart()
	}
	if _, err := d.into.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	d.hash = sha256.New()
	if d.size, err = io.Copy(d.hash, patience.WithContext(ctx, d.into)); err != nil {
		return false, fmt.Errorf("read what has arrived: %w", err)
	}
	d.arrived(d.size)
	return d.size > 0, nil
}

// restart empties the file.
func (d *download) restart() error {
	if err := d.into.Truncate(0); err != nil {
		return fmt.Errorf("empty the file: %w", err)
	}
	if _, err := d.into.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind the file: %w", err)
	}
	d.hash, d.size = sha256.New(), 0
	d.arrived(0)
	return nil
}

// restarted counts an answer that has not what was asked for, and empties the file.
func (d *download) restarted() error {
	if d.restarts++; d.restarts > d.repo.cfg.Restarts {
		return fmt.Errorf("%w: it sent the blob from its start %d times in answer to Range", ErrRestarts, d.restarts)
	}
	return d.restart()
}

func (d *download) check() error {
	if got := hex.EncodeToString(d.hash.Sum(nil)); got != reference.Hex(d.want.Digest) {
		err := fmt.Errorf("%w: expected %s, got sha256:%s", ErrDigest, d.want.Digest, got)
		return errors.Join(err, d.into.Truncate(0)) // the next call must not build on it
	}
	return nil
}

// more sends one request for what is missing. nil: nothing is missing.
func (d *download) more(ctx context.Context) error {
	if d.size == d.want.Size {
		return nil
	}
	cfg := d.repo.cfg
	patient, from := patience.New(ctx, cfg.StallTimeout)
	defer from.Stop()
	resp, err := d.request(patient)
	if err != nil {
		return requestError{from.OrCause(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
		if d.size > 0 {
			if err := d.restarted(); err != nil {
				return err
			}
		}
	case http.StatusPartialContent:
		if err := d.checkRange(resp.Header.Get("Content-Range")); err != nil {
			return err
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if err := d.restarted(); err != nil {
			return err
		}
		return errors.New("the registry knows another size")
	default:
		return &errcode.ErrorResponse{Method: http.MethodGet, URL: resp.Request.URL, StatusCode: resp.StatusCode}
	}
	from.Reader = resp.Body
	return d.receive(from)
}

func (d *download) request(ctx context.Context) (*http.Response, error) {
	scheme, ref := "https", d.repo.oras.Reference
	if d.repo.plain {
		scheme = "http"
	}
	ctx = auth.AppendRepositoryScope(ctx, ref, auth.ActionPull)
	address := scheme + "://" + ref.Host() + "/v2/" + ref.Repository + "/blobs/" + d.want.Digest
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if d.size > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.size, d.want.Size-1))
	}
	return d.repo.auth.Do(req)
}

// checkRange refuses an answer that begins at another byte than the one asked for.
func (d *download) checkRange(header string) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(header, "bytes "), "-")
	if n, err := strconv.ParseInt(first, 10, 64); err != nil || n != d.size {
		return fmt.Errorf("%w: Content-Range %.100q in answer to a request from byte %d", ErrAnswer, header, d.size)
	}
	return nil
}

// receive appends what the registry sends.
func (d *download) receive(from io.Reader) error {
	to := io.MultiWriter(d.room.Writer(d.into, "downloading"), d.hash, counter{d})
	_, err := io.Copy(to, io.LimitReader(from, d.want.Size-d.size))
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", d.size, d.want.Size, err)
	}
	if d.size < d.want.Size {
		return fmt.Errorf("after %d of %d bytes: %w", d.size, d.want.Size, io.ErrUnexpectedEOF)
	}
	if n, _ := io.ReadFull(from, make([]byte, 1)); n > 0 {
		err := fmt.Errorf("%w: more than the %d bytes of the manifest", ErrDigest, d.want.Size)
		return errors.Join(requestError{err}, d.into.Truncate(0))
	}
	return nil
}

// counter counts what was written.
type counter struct{ d *download }

func (c counter) Write(p []byte) (int, error) {
	c.d.size += int64(len(p))
	c.d.got += int64(len(p))
	c.d.arrived(c.d.size)
	return len(p), nil
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return patience.Ended(ctx)
	}
}
