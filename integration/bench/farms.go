package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	readyLine  = "farm is ready"
	syncedLine = "every living node has reported"
)

const claimedLine = "claimed a unit"

// lines passes a farm's log on, and watches it for texts.
type lines struct {
	to      io.Writer
	mu      sync.Mutex
	want    map[string]chan struct{} // closed when seen
	begun   []byte                   // the beginning of a line that is not complete yet
	claimed time.Time                // when the last line about a claimed unit came
}

func newLines(to io.Writer) *lines {
	return &lines{to: to, want: map[string]chan struct{}{
		readyLine:  make(chan struct{}),
		syncedLine: make(chan struct{}),
	}}
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = append(l.begun, p...)
	end := bytes.LastIndexByte(l.begun, '\n') + 1
	whole := l.begun[:end]
	for text, seen := range l.want {
		if bytes.Contains(whole, []byte(text)) {
			close(seen)
			delete(l.want, text)
		}
	}
	if bytes.Contains(whole, []byte(claimedLine)) {
		l.claimed = time.Now()
	}
	l.begun = append([]byte(nil), l.begun[end:]...)
	return l.to.Write(p)
}

func (l *lines) lastClaim() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claimed
}

func (l *lines) seen(ctx context.Context, text string) error {
	l.mu.Lock()
	ch, waiting := l.want[text]
	l.mu.Unlock()
	if !waiting {
		return nil
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the farm has not logged %q: %w", text, context.Cause(ctx))
	}
}

func (b *bench) logFile(sc *scope, id string) (io.Writer, error) {
	if b.logs == "" {
		return io.Discard, nil
	}
	file, err := os.OpenFile(filepath.Join(b.logs, id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	sc.add(func() { _ = file.Close() })
	return file, nil
}

type commits struct {
	mu      sync.Mutex
	placing []*store.Batch // batches that placed pods and landed
	refused int            // number of batches with pods that were refused
	pods    int            // number of placed pods
	target  int
	reached chan struct{} // closed when pods reaches target
	at      time.Time     // when it did
}

func newCommits(target int) *commits { return &commits{target: target, reached: make(chan struct{})} }

func (c *commits) note(b *store.Batch, err error) {
	if len(b.Pods) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, store.ErrRefused):
		c.refused++
	case err == nil:
		c.placing = append(c.placing, b)
		before := c.pods
		for i := range b.Pods {
			if b.Pods[i].Index == 0 {
				c.pods++
			}
		}
		if before < c.target && c.pods >= c.target {
			c.at = now
			close(c.reached)
		}
	}
}

func (c *commits) placed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods
}

// refusals returns how many batches with pods were refused.
func (c *commits) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// refusedShare returns the share of batches with pods that were refused. Call it after the farms have stopped.
func (c *commits) refusedShare() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.refused) / float64(c.refused+len(c.placing))
}

type watched struct {
	*store.FarmSession
	commits *commits
}

func (w watched) Commit(ctx context.Context, b *store.Batch) error {
	err := w.FarmSession.Commit(ctx, b)
	w.commits.note(b, err)
	return err
}

// farmIn runs a farm in this program, and returns when the farm may place pods.
func (b *bench) farmIn(ctx context.Context, sc *scope, w *world, id, addr string, noted *commits) error {
	out, err := b.logFile(sc, id)
	if err != nil {
		return err
	}
	events := newLines(out)
	log, err := obs.NewLogger(events, "info", "text")
	if err != nil {
		return err
	}
	client, st, err := w.connect(sc, addr)
	if err != nil {
		return err
	}
	session := consul.SessionConfig{
		Kind: "farm", Name: id, Scope: st.Keys().Prefix(),
		TTL: patientTTL, Journal: &simnode.Journal{},
	}
	background(ctx, sc, func(ctx context.Context) error {
		return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
			cfg := farm.Config{ID: id, Store: watched{st.FarmSession(s, id), noted}, Log: log}
			return farm.NewFarm(cfg).Start(ctx)
		})
	})
	return events.seen(ctx, syncedLine)
}

type process struct {
	id     string
	dir    string
	debug  string // address of its debug server
	cmd    *exec.Cmd
	events *lines
	ended  chan struct{}
}

// startFarm starts the built farm. dir is its data directory; empty: a new one.
func (b *bench) startFarm(ctx context.Context, sc *scope, w *world, id, dir, addr string,
	more ...string,
) (*process, error) {
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "rcfarm-bench-"); err != nil {
			return nil, err
		}
		sc.add(func() { _ = os.RemoveAll(dir) })
	}
	out, err := b.logFile(sc, id)
	if err != nil {
		return nil, err
	}
	ports, err := devserver.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	p := &process{
		id: id, dir: dir, debug: fmt.Sprintf("127.0.0.1:%d", ports[0]),
		events: newLines(out), ended: make(chan struct{}),
	}
	args := []string{
		"--id", id, "--data-dir", dir, "--consul-addr", addr, "--prefix",
		w.keys.Prefix(), "--debug-addr", p.debug,
	}
	p.cmd = exec.Command(b.farm, append(args, more...)...)
	p.cmd.Stderr = p.events
	if err := consultest.StartTied(p.cmd, func(error) { close(p.ended) }); err != nil {
		return nil, fmt.Errorf("%w; run `make build`", err)
	}
	sc.add(func() {
		_ = p.cmd.Process.Kill() // it may have ended already
		<-p.ended
	})
	ready, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.ended:
			cancel(errors.New("the farm has ended"))
		case <-ready.Done():
		}
	}()
	return p, p.events.seen(ready, readyLine)
}
