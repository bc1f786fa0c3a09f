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
	// maxTries bounds how often a change is computed again because somebody else changed the record meanwhile.
	maxTries = 5
	// maxNodeTries is that for a node, whose records the farms that reserve room on it change too.
	maxNodeTries = 50
	// retryGap lies between two tries.
	retryGap = 20 * time.Millisecond
	// writeLimit bounds a change from its first read to its last answer, all tries together.
	writeLimit = 30 * time.Second
)

var errWriteLimit = errors.New("no definite answer from Consul within " + writeLimit.String())

// writing runs an act that writes, and again where that says that a record moved meanwhile. by is who acts.
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

// commit writes a change of a controller with its audit record; nothing where there is nothing to do. index is that of
// the record that the change was computed from, zero where there was none.
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
	err = s.did(fmt.Sprintf("rc %s: %s, generation %d", c.rc.Name, c.what, c.rc.Generation), "rcctl audit --rc "+c.rc.ID, err)
	switch {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("rc %s: somebody else keeps changing it, %d tries; nothing was written: %w", c.rc.Name, maxTries, err)
	case err != nil:
		return fmt.Errorf("%s rc %s: %w", c.what, c.rc.Name, err)
	}
	return nil
}

// named are the lines of an act that say which name it gave or took: the record that has it goes.
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

// did notes how a write ended, and returns its error.
func (s *conn) did(what, show string, err error) error {
	unknown := errors.Is(err, store.ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
	if err == nil || unknown {
		s.deeds = slices.DeleteFunc(s.deeds, func(d inspect.Deed) bool { return d.Unknown && d.What == what }) // it was tried again
		s.deeds = append(s.deeds, inspect.Deed{What: what, Show: show, Unknown: unknown})
	}
	return err
}

// ensureSchema makes the records that every cluster has where there are none yet.
func (s *conn) ensureSchema(ctx context.Context) error {
	_, err := s.Schema.Get(ctx, store.Default)
	if errors.Is(err, store.ErrNotFound) {
		_, err = s.Operator.EnsureSchema(ctx)
		err = s.did("the records that a new cluster begins with", "rcctl rc list", err)
	}
	if err != nil {
		return fmt.Errorf("read schema: %w", err)
	}
	return nil
}

// readCurrent reads what the change of a controller is computed from, if there is one of that name. The manifest stays as it is.
func readCurrent(ctx context.Context, s *conn, name string) (cur current, index uint64, err error) {
	rec, err := s.FindRC(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return cur, 0, nil
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
	if errors.Is(err, store.ErrNotFound) || isCorrupt(err) {
		return cur, rec.Index, nil
	}
	cur.found = st.Value.ObservedGeneration == cur.rc.Generation && st.Value.Is(rc.Regressed) // as its owner saw it at the present generation
	return cur, rec.Index, err
}

// readStored reads what is stored already of a change's manifests.
func (cur *current) readStored(ctx context.Context, s *conn, digests rc.Digests) error {
	cur.stored = map[string]string{}
	for _, digest := range digests.All() {
		m, signature, err := cur.manifest, cur.signature, error(nil)
		if cur.rc == nil || cur.rc.ManifestDigest != digest {
			m, signature, err = readable(s.SignedManifest(ctx, digest))
		}
		switch {
		case err != nil:
			return err
		case m != nil:
			cur.stored[digest] = signature
		}
	}
	return nil
}

// readable turns a manifest that is missing or corrupt into nil: then it is written again.
func readable(m *manifest.Manifest, signature string, err error) (*manifest.Manifest, string, error) {
	if errors.Is(err, store.ErrNotFound) || isCorrupt(err) {
		return nil, "", nil
	}
	return m, signature, err
}

// isCorrupt reports whether a record is there and cannot be read.
func isCorrupt(err error) bool {
	_, is := errors.AsType[*store.CorruptError](err)
	return is
}

// changeRC changes the controller with an id as compute says, and returns the change as written, or as found when
// there is nothing to do.
func (s *conn) changeRC(ctx context.Context, id string, compute func(context.Context, *rc.RC) (change, error)) (done change, err error) {
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

func massStopFlag() cli.Flag {
	return &cli.BoolFlag{Name: "allow-mass-stop", Usage: "let this change, also if it is written already, stop more pods at once than the mass-stop breaker allows"}
}

// printChange says what was done and what was different.
func printChange(std *stdio, c change, done string) {
	if c.none {
		fmt.Fprintf(std.out, "rc %s unchanged (id %s, generation %d); nothing was written\n", c.rc.Name, c.rc.ID, c.rc.Generation)
		return
	}
	if c.signOnly {
		done = "signed"
	}
	fmt.Fprintf(std.out, "rc %s %s (id %s, generation %d)\n", c.rc.Name, done, c.rc.ID, c.rc.Generation)
	if c.what != "create" {
		printLines(std.out, c.lines)
	}
}

// printLines prints what is different.
func printLines(w io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(w, "  "+forTerminal(line))
	}
}
