package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

// preparerConns is how many connections one node may take of its agent (P8).
const preparerConns = 6

// PreparerConfig is what a node's agent is told.
type PreparerConfig struct {
	Common
	Node    string
	Address string   // given to pods as NODE_ADDRESS
	Labels  []string // key=value
	Slots   int
	CPU     int64 // thousandths of a core; zero: not limited; Detect: what the machine has
	Memory  int64 // bytes; as CPU
	// What is left of the machine to others than pods; zero: not bounded.
	ReserveCPU    int64 // thousandths of a core
	ReserveMemory int64 // bytes
	PortsMin      int   // of the range for dynamic ports
	PortsMax      int

	Isolation string // IsolationAuto, IsolationOn or IsolationOff
	UserRange string // first-last
	AllowRoot bool   // manifests may ask for the user root

	Artifacts   artifact.Config // only ReserveBytes may be zero
	API         nodeapi.Config
	Intents     string        // IntentsWatch or IntentsPush; empty: watch
	PullEvery   time.Duration // between two readings of the intents that nobody asks for, with IntentsPush; zero: a minute
	HooksDir    string        // the node's own hooks; empty: none
	KeepStopped time.Duration // how long home, logs and versions of a stopped pod stay
	TakeOver    bool          // the node's name from another host, once
	TrustPolicy string        // file that says which manifests the node runs; empty: all
}

// record validates the configuration and turns it into the node's record.
func (c *PreparerConfig) record() (node.Node, error) {
	var errs field.Errors
	errs.CheckName("node", c.Node)
	checkAddress(&errs, c.Address)
	labels := map[string]string{}
	for _, l := range c.Labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			errs.Add("label", l, "key=value")
			continue
		}
		labels[key] = value
	}
	manifest.ValidateLabels(&errs, "label", labels)
	c.ports(&errs)
	if c.KeepStopped <= 0 {
		errs.Add("keep-stopped", c.KeepStopped.String(), "a length of time greater than zero, such as 24h")
	}
	if c.HooksDir != "" {
		if info, err := os.Stat(c.HooksDir); err != nil || !info.IsDir() {
			errs.Add("hooks-dir", c.HooksDir, "a directory that is there")
		}
	}
	c.users(&errs)
	if c.Isolation == IsolationOff && c.ReserveCPU+c.ReserveMemory > 0 {
		errs.Add("isolation", c.Isolation, "auto or on, with --reserve-cpu or --reserve-memory: pods are bounded by their cgroups")
	}

	checkArtifacts(&errs, &c.Artifacts)
	c.api().Check(&errs)
	if !slices.Contains([]string{"", IntentsWatch, IntentsPush}, c.Intents) {
		errs.Add("intents", c.Intents, IntentsWatch+" or "+IntentsPush)
	}
	if c.PullEvery != 0 && (c.PullEvery < time.Second || c.PullEvery > time.Hour) {
		errs.Add("intents-every", c.PullEvery.String(), "a length of time from 1s to 1h")
	}
	capacity, err := node.ParseCapacity(c.Slots, givenOr0(c.CPU), givenOr0(c.Memory))
	if inner, ok := err.(field.Errors); ok { //nolint:errorlint // ParseCapacity returns nothing else
		errs = append(errs, inner...)
	}
	c.validate(&errs)
	return node.Node{
		Name: c.Node, Labels: labels, Capacity: capacity, Address: c.Address, Version: Version, TTL: field.Duration(c.TTL),
		PortRange: node.PortRange{Min: c.PortsMin, Max: c.PortsMax},
	}, errs.Err()
}

// givenOr0 returns what a flag says of an amount, zero where it is to be detected.
func givenOr0(amount int64) int64 {
	if amount == Detect {
		return 0
	}
	return amount
}

// How a node learns of its intents.
const (
	IntentsWatch = "watch" // by a standing query
	IntentsPush  = "push"  // farms tell it (ADR 26)
)

// intents says in the node's record how it learns of its intents. Where farms could not tell it, it watches.
func (c *PreparerConfig) intents(log obs.Logger) string {
	if c.Intents != IntentsPush {
		return ""
	}
	if why := c.api().Pushable(); why != "" {
		log.WithField(obs.Reason, why).Warn("--intents push is not possible; the node watches its intents")
		return node.IntentsRefused
	}
	return node.IntentsPush
}

// maxPort is the highest TCP port.
const maxPort = 65535

func (c *PreparerConfig) ports(errs *field.Errors) {
	if c.PortsMin < 1 || c.PortsMin > maxPort {
		errs.Add("port-min", c.PortsMin, fmt.Sprintf("a port from 1 to %d, not above --port-max", maxPort))
	}
	switch {
	case c.PortsMax < 1 || c.PortsMax > maxPort:
		errs.Add("port-max", c.PortsMax, fmt.Sprintf("a port from 1 to %d, not below --port-min", maxPort))
	case c.PortsMin > c.PortsMax && c.PortsMin <= maxPort:
		errs.Add("port-max", c.PortsMax, fmt.Sprintf("a port from --port-min, which is %d, to %d", c.PortsMin, maxPort))
	}
}

// Preparer is the agent of one node.
type Preparer struct {
	*base
	cfg    PreparerConfig
	record node.Node
	agent  *preparer.Preparer
	debug  *obs.DebugServer
	api    *nodeapi.Server
}

// NewPreparer opens everything that the agent needs except Consul, which may be away for now: pods are supervised without
// it.
func NewPreparer(ctx context.Context, cfg PreparerConfig) (p *Preparer, err error) {
	record, err := cfg.record()
	if err != nil {
		return nil, misconfigured(err)
	}
	b, err := open(ctx, cfg.Common, preparerConns, os.Stderr)
	if err != nil {
		return nil, err
	}
	p = &Preparer{base: b, cfg: cfg, record: record}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if cfg.HooksDir != "" {
		if cfg.HooksDir, err = filepath.Abs(cfg.HooksDir); err != nil {
			return nil, err
		}
	}
	stored := cfg.Artifacts
	stored.Dir, stored.ReserveBytes = b.dir.Path("artifacts"), cmp.Or(stored.ReserveBytes, -1) // zero is artifact's default, and none of the flags'
	artifacts, err := artifact.New(stored)
	if err != nil {
		return nil, err
	}
	if err := refuseFormer(b.dir); err != nil {
		return nil, err
	}
	if !onMachine(cfg.Address) {
		b.log.WithField(obs.Address, cfg.Address).Warn("this machine does not have the address of --address: pods that listen on NODE_ADDRESS cannot start. " +
			"That is right only where the address is mapped to this machine, and pods listen on others; else name one of the machine's")
	}
	policy, err := trustPolicy(cfg.TrustPolicy, b.log)
	if err != nil {
		return nil, err
	}
	isolation, cgroup, err := cfg.isolation(b.dir.Path(""), b.log)
	whole, total := cfg.detect(cgroup, b.log)
	caps, capsErr := cfg.caps(whole)
	record.Capacity = cfg.offer(total)
	if cgroup != "" {
		b.undo = append(b.undo, func() {
			if caps == (machine.Total{}) || !b.started { // else a process may start again while no preparer runs, and must find the cap
				isolate.Prune(cgroup)
			}
		})
	}
	err = errors.Join(err, capsErr)
	if err != nil {
		return nil, err
	}
	pods, err := openRuntime(b, cgroup)
	if err != nil {
		return nil, err
	}
	b.undo = append(b.undo, pods.Close)
	if err := pods.Bound(caps.CPU, caps.Memory); err != nil {
		return nil, err
	}
	api := cfg.api()
	api.Dir, api.Log = b.dir.Path(""), b.log
	if p.api, err = nodeapi.New(ctx, api); err != nil {
		return nil, err
	}
	b.undo = append(b.undo, p.api.Close)
	record.API, record.Isolation = p.api.URL(), isolation.String()
	record.Intents = cfg.intents(b.log)
	reg := obs.NewRegistry()
	b.obstacles = b.newObstacles(reg, "preparer")
	var doors claim.Doors // whoever keeps no pods apart can keep none from the preparer's token, either
	if cfg.Isolation != IsolationOff {
		doors = b.store
	}
	p.agent, err = preparer.New(preparer.Config{
		Doors: doors, Strict: cfg.Isolation == IsolationOn, InUse: cfg.inUse,
		Host: install.Host{Dir: b.dir.Path(""), HooksDir: cfg.HooksDir, Isolation: isolation, Artifacts: artifacts, Runtime: pods, Trust: policy},
		Node: record, Store: b.store, Cache: artifacts,
		Services: b.client.Services, Log: b.log.WithField(obs.Node, cfg.Node), Metrics: preparer.NewMetrics(reg),
		KeepStopped: cfg.KeepStopped, TakeOver: cfg.TakeOver, Push: record.Intents == node.IntentsPush, PullEvery: cfg.PullEvery,
	})
	if err == nil {
		p.debug, err = b.openDebug(ctx, reg, p.agent.Ready)
	}
	b.started = err == nil
	return p, err
}

// Run works until ctx ends. Pods run on without it.
func (p *Preparer) Run(ctx context.Context) error {
	defer p.close()
	p.log.WithFields(obs.Fields{obs.Node: p.cfg.Node, obs.PID: os.Getpid(), "version": Version, "emulates": p.store.Emulates()}).Info("preparer starts")
	api := func(ctx context.Context) error { return p.api.Run(ctx, p.agent) } // logs, and commands in pods
	err := together(ctx, p.agent.Run, p.serve, p.debug.Run, api, p.store.UntilBehind, p.untilLifeline)
	p.log.WithField(obs.Reason, fmt.Sprint(err)).Info("preparer ended; its pods run on")
	return err
}

// serve reports to Consul and takes intents from it, in one session after the other.
func (p *Preparer) serve(ctx context.Context) error {
	session := consul.SessionConfig{
		Kind: "preparer", Name: p.cfg.Node, Scope: p.store.Keys().Prefix(), TTL: p.cfg.TTL, Journal: p.dir, OnEvent: p.sessionEvents,
		Meta: p.store.PreparerMeta(p.cfg.Node), SessionTTL: preparerSessionTTL,
		OnRenewed: func(ctx context.Context, s *consul.Session, every time.Duration) error {
			err := p.store.NodeHeard(ctx, s, p.cfg.Node, every)
			if err == nil {
				p.obstacles.over()
			}
			return err
		},
		Stuck: stuck,
	}
	return p.client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
		return p.agent.Serve(ctx, p.store.NodeSession(s, p.cfg.Node))
	})
}

// trustPolicy returns what decides about manifests by the policy in a file, nil where no file is named. A policy that
// cannot be read keeps new manifests out and no pod down, so it does not keep the preparer from starting either.
func trustPolicy(file string, log obs.Logger) (install.Trust, error) {
	if file == "" {
		return nil, nil
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("trust policy %s: %w", file, err)
	}
	node := trust.NewNode(absolute)
	policy, err := node.Policy()
	log = log.WithField("policy", absolute)
	if err != nil {
		log.WithField(obs.Error, err).Error("trust policy unreadable; no new manifest is run until it is mended")
	} else {
		log.WithFields(obs.Fields{"require_signature": *policy.RequireSignature, "rules": len(policy.Rules)}).Info("trust policy read")
	}
	return node, nil
}
