package shim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

var errUnknownPath = errors.New("the supervisor does not know this request")

const (
	firstRetry = 10 * time.Millisecond  // after a failed connection; grows
	lastRetry  = 250 * time.Millisecond // longest such pause
	// respawn is the shortest time between two attempts of a client to start a supervisor. One attempt may not be
	// enough: if a dying supervisor still holds the lock, the new supervisor ends.
	respawn = 500 * time.Millisecond
)

// ClientConfig is what Dial needs.
type ClientConfig struct {
	Dir            string        // as in Config
	Cgroup         string        // parent directory of the cgroups (v2) of isolated processes; empty: no cgroups
	Spawn          func() error  // starts a supervisor if none answers, for example by the function Spawn; nil: never
	ConnectTimeout time.Duration // how long a call tries to reach a supervisor before it fails; zero: 5 s
}

// Client is the preparer's side of the protocol. It is safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	http     *http.Client
	commands commands

	mu        sync.Mutex // held while spawning, so that concurrent calls start one supervisor
	lastSpawn time.Time

	// seen is the latest answer to a watch; its content never changes; nil before the first
	seen     atomic.Pointer[snapshot]
	features atomic.Pointer[runtime.Features] // of the supervisor that sent seen; nil before the first
}

var _ runtime.Runtime = (*Client)(nil)

// Dial does not connect. Each call of a method connects to the supervisor that runs then, or starts one. If the
// directory is not absolute, or too long for a socket, Dial returns an error.
func Dial(cfg ClientConfig) (*Client, error) {
	path, err := socketPath(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, 5*time.Second)
	dialer := &net.Dialer{}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
	}
	return &Client{
		cfg: cfg, http: &http.Client{Transport: transport},
		commands: commands{dir: filepath.Join(cfg.Dir, commandsName), ended: map[string]chan struct{}{}},
	}, nil
}

// Close closes idle connections. The supervisor and its processes continue to run.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Start can also return ErrUnreachable.
func (c *Client) Start(ctx context.Context, spec runtime.Spec) error {
	path := startPath
	if spec.Container != nil {
		path = containPath
	}
	local := localSpec{spec.Process, c.confine(spec.Isolation, spec.ID), spec.Container}
	err := c.call(ctx, http.MethodPost, path, local, nil)
	if errors.Is(err, errUnknownPath) {
		return runtime.ErrTooOld
	}
	if err == nil {
		c.commands.reopen(spec.ID)
	}
	return err
}

// Stop can also return ErrUnreachable.
func (c *Client) Stop(ctx context.Context, id string) error {
	c.commands.stop(id)
	err := c.call(ctx, http.MethodPost, stopPath, target{ID: id}, nil)
	if err == nil {
		err = c.commands.await(ctx, id)
	}
	if err != nil {
		c.commands.reopen(id)
	}
	return err
}

// Restart can also return ErrUnreachable.
func (c *Client) Restart(ctx context.Context, ask runtime.RestartRequest) error {
	err := c.call(ctx, http.MethodPost, restartPath, ask, nil)
	if errors.Is(err, errUnknownPath) {
		return runtime.ErrTooOld
	}
	return err
}

// Relimit can also return ErrUnreachable.
func (c *Client) Relimit(ctx context.Context, to runtime.LimitRequest) error {
	err := c.call(ctx, http.MethodPost, relimitPath, to, nil)
	if errors.Is(err, errUnknownPath) {
		return runtime.ErrTooOld
	}
	return err
}

// Remove can also return ErrUnreachable.
func (c *Client) Remove(ctx context.Context, id string) error {
	err := c.call(ctx, http.MethodPost, removePath, target{ID: id}, nil)
	if err == nil {
		c.seen.Store(nil) // the snapshot may still have the process
		c.commands.forget(id)
	}
	return err
}

// Watch returns at once if the cursor is from an earlier supervisor. It can also return ErrUnreachable.
func (c *Client) Watch(ctx context.Context, cursor uint64) ([]runtime.Status, uint64, error) {
	all, err := c.poll(ctx, cursor)
	if err != nil {
		return nil, cursor, err
	}
	statuses := make([]runtime.Status, len(all.Processes))
	for i := range all.Processes {
		statuses[i] = runtime.Status{Spec: all.Processes[i].Spec.asked(), State: all.Processes[i].State}
	}
	return statuses, all.Cursor, nil
}

// Ping can also return ErrUnreachable. Any answer counts if the supervisor is too old for pings.
func (c *Client) Ping(ctx context.Context) error {
	err := c.call(ctx, http.MethodGet, pingPath, nil, nil)
	if errors.Is(err, errUnknownPath) {
		return nil
	}
	return err
}

// Features implements runtime.Runtime.
func (c *Client) Features() runtime.Features {
	if known := c.features.Load(); known != nil {
		return *known
	}
	return runtime.Features{}
}

func (c *Client) poll(ctx context.Context, cursor uint64) (snapshot, error) {
	for {
		var base snapshot
		if seen := c.seen.Load(); seen != nil {
			base = *seen
		}
		path := fmt.Sprintf("%s?cursor=%d&base=%d", watchPath, cursor, base.Cursor)
		var snap snapshot
		if err := c.call(ctx, http.MethodGet, path, nil, &snap); err != nil {
			return snapshot{}, err
		}
		if snap.Cursor == 0 { // nothing changed within the time of one poll
			continue
		}
		if snap.Base != 0 && snap.Base != base.Cursor {
			return snapshot{}, fmt.Errorf("watch processes: the supervisor answers to cursor %d, want %d",
				snap.Base, base.Cursor)
		}
		all := snap.over(base)
		c.seen.Store(&all)
		c.features.Store(&runtime.Features{Watchdogs: all.Watchdogs, Containers: all.Containers})
		return all, nil
	}
}

// call repeats a request until a supervisor answers. This is safe because all requests are idempotent.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	pace := wait.NewPace(firstRetry, lastRetry)
	var spawnErr error
	failingSince := time.Now()
	for {
		began := time.Now()
		err := c.once(ctx, method, path, in, out)
		if err == nil || !errors.Is(err, ErrUnreachable) {
			return err
		}
		if time.Since(began) > lastRetry { // a supervisor accepted the connection, and then died
			failingSince = time.Now()
		}
		if e := c.spawn(); e != nil {
			spawnErr = e
		}
		if time.Since(failingSince) > c.cfg.ConnectTimeout {
			return errors.Join(err, spawnErr)
		}
		if wait.Pause(ctx, pace.NextBackOff()) != nil {
			return fmt.Errorf("call supervisor: %w", ctx.Err())
		}
	}
}

func (c *Client) spawn() error {
	if c.cfg.Spawn == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.lastSpawn) < respawn {
		return nil
	}
	err := c.cfg.Spawn()
	c.lastSpawn = time.Now()
	return err
}

// If no answer arrives, or the supervisor shuts down, once returns ErrUnreachable.
func (c *Client) once(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("call supervisor: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://shim"+path, body)
	if err != nil {
		return fmt.Errorf("call supervisor: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return lost(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return lost(ctx, err)
	}
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %w", ErrUnreachable, errLeaving)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("call supervisor: %w", errUnknownPath)
	case resp.StatusCode/100 != 2:
		var f failure
		if err := json.Unmarshal(data, &f); err != nil || f.Message == "" {
			return fmt.Errorf("call supervisor: %s: %q", resp.Status, data)
		}
		return remoteError{f}
	case out == nil || len(data) == 0:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("read the supervisor's answer: %w", err)
	}
	return nil
}

func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("call supervisor: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
