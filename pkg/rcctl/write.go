package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	// how often a change is computed if others change the record meanwhile
	maxTries = 5
	// the same for the records of a node; more, because every farm that reserves capacity changes the node's
	// reservation
	maxNodeTries = 50
	// between two tries
	retryGap = 20 * time.Millisecond
	// for a change with all its tries
	writeLimit = 30 * time.Second
)

var errWriteLimit = errors.New("no definite answer from Consul within " + writeLimit.String())

// writing runs act again after store.ErrConflict. by is the author of the change.
func (s *conn) writing(ctx context.Context, tries int, act func(ctx context.Context, by string) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit, errWriteLimit)
	defer cancel()
	by, err := s.who(ctx)
	for try := 1; err == nil; try++ {
		if err = act(ctx, by); try == tries || !errors.Is(err, store.ErrConflict) {
			return err
		}
		err = rest(ctx, retryGap)
	}
	return err
}

// commit writes a change with its audit record. index is the index of the record from which the change was computed,
// zero for none.
func (s *conn) commit(ctx context.Context, c *change, index uint64, by string) error {
	if c.none {
		return nil
	}
	audit := store.NewAudit(by, c.what, c.rc.ID, slices.Concat(named(c), c.lines))
	var err error
	if c.signOnly {
		err = s.Operator.SignManifests(ctx, c.rc.ID, c.manifests, audit)
	} else {
		rolls, unread := s.Deployments.RolloutFor(ctx, &c.rc)
		switch {
		case unread != nil:
			return fmt.Errorf("rc %s: %w", c.rc.Name, unread)
		case rolls != nil:
			return inRollout(c, rolls)
		}
		c.rc.ChangedBy = by
		err = s.Operator.ChangeRC(ctx, store.RCChange{RC: c.rc, Index: index, Manifests: c.manifests, Audit: audit})
	}
	err = s.did(fmt.Sprintf("rc %s: %s, generation %d", c.rc.Name, c.what, c.rc.Generation),
		"rcctl audit --rc "+c.rc.ID, err)
	switch {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("rc %s: somebody else changed it during each of %d tries; nothing was written: %w",
			c.rc.Name, maxTries, err)
	case err != nil:
		return fmt.Errorf("%s rc %s: %w", c.what, c.rc.Name, err)
	}
	return nil
}

// named returns the audit line about a name that a change gives or removes. The record with the name may be gone when
// somebody reads the line.
func named(c *change) []string {
	switch c.what {
	case "create":
		return []string{inspect.NameLine(c.rc.Name, true)}
	case "delete":
		return []string{inspect.NameLine(c.rc.Name, false)}
	default:
		return nil
	}
}

// did records the outcome of a write, and returns its error.
func (s *conn) did(what, show string, err error) error {
	unknown := errors.Is(err, store.ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
	if err == nil || unknown {
		// a retry replaces the unknown outcome of an earlier try
		s.deeds = slices.DeleteFunc(s.deeds, func(d inspect.Deed) bool { return d.Unknown && d.What == what })
		s.deeds = append(s.deeds, inspect.Deed{What: what, Show: show, Unknown: unknown})
	}
	return err
}

func (s *conn) ensureSchema(ctx context.Context) error {
	_, err := s.Schema.Get(ctx, store.Default)
	if isMissing(err) {
		_, err = s.Operator.EnsureSchema(ctx)
		err = s.did("the records that a new cluster begins with", "rcctl rc list", err)
	}
	if err != nil {
		return fmt.Errorf("read schema: %w", err)
	}
	return nil
}

// readCurrent returns no rc if no controller has the name.
func readCurrent(ctx context.Context, s *conn, name string) (cur current, index uint64, err error) {
	rec, err := s.FindRC(ctx, name)
	if isMissing(err) {
		cur.beside, err = s.Deployed.Exists(ctx, name)
		return cur, 0, unlessHidden(err)
	}
	if err != nil {
		return cur, 0, err
	}
	cur.rc = &rec.Value
	if cur.service, err = s.serviceOf(ctx, cur.rc); err != nil {
		return cur, 0, err
	}
	if cur.manifest, cur.signature, err = readable(s.SignedManifest(ctx, rec.Value.ManifestDigest)); err != nil {
		return cur, 0, err
	}
	st, err := s.Statuses.Get(ctx, store.Default, cur.rc.ID)
	if isUnusable(err) {
		return cur, rec.Index, nil
	}
	// the condition must be about the present generation
	cur.found = st.Value.ObservedGeneration == cur.rc.Generation && st.Value.Is(rc.Regressed)
	return cur, rec.Index, err
}

func (c *current) readStored(ctx context.Context, s *conn, digests rc.Digests) error {
	c.stored = map[string]string{}
	for _, digest := range digests.All() {
		m, signature, err := c.manifest, c.signature, error(nil)
		if c.rc == nil || c.rc.ManifestDigest != digest {
			m, signature, err = readable(s.SignedManifest(ctx, digest))
		}
		switch {
		case err != nil:
			return err
		case m != nil:
			c.stored[digest] = signature
		}
	}
	return nil
}

// unlessHidden drops the error of a read that serves only a warning, if the token may not make this read.
func unlessHidden(err error) error {
	if errors.Is(err, store.ErrFiltered) {
		return nil
	}
	return err
}

func present[T any](rec store.Rec[T], err error) (*T, error) {
	switch {
	case isUnusable(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &rec.Value, nil
}

// readable returns nil for a manifest that is missing or corrupt, so that the caller writes it again.
func readable(m *manifest.Manifest, signature string, err error) (*manifest.Manifest, string, error) {
	if isUnusable(err) {
		return nil, "", nil
	}
	return m, signature, err
}

func isMissing(err error) bool { return errors.Is(err, store.ErrNotFound) }

// isUnusable reports whether a record is missing or cannot be read.
func isUnusable(err error) bool { return isMissing(err) || isCorrupt(err) }

func isCorrupt(err error) bool {
	_, is := errors.AsType[*store.CorruptError](err)
	return is
}

// changeRC also returns a change that needed no write.
func (s *conn) changeRC(ctx context.Context, id string,
	compute func(context.Context, *rc.RC) (change, error),
) (done change, err error) {
	err = s.writing(ctx, maxTries, func(ctx context.Context, by string) error {
		if err := s.ensureSchema(ctx); err != nil {
			return err
		}
		rec, err := s.RCs.Get(ctx, store.Consistent, id)
		if err != nil {
			return fmt.Errorf("read rc %s: %w", id, err)
		}
		if done, err = compute(ctx, &rec.Value); err != nil {
			return err
		}
		return s.commit(ctx, &done, rec.Index, by)
	})
	return done, err
}

func massStopFlag() []cli.Flag {
	return toggle("allow-mass-stop",
		"let this change, even if it is written already, stop more pods at once than the mass-stop breaker allows")
}

func printChange(std *stdio, c change, done string) {
	if c.none {
		std.printLine("rc %s unchanged (id %s, generation %d); nothing was written",
			c.rc.Name, c.rc.ID, c.rc.Generation)
		return
	}
	if c.signOnly {
		done = "signed"
	}
	std.printLine("rc %s %s (id %s, generation %d)", c.rc.Name, done, c.rc.ID, c.rc.Generation)
	if c.what != "create" {
		printLines(std.out, c.lines)
	}
}

func printLines(w io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(w, "  "+forTerminal(line))
	}
}
