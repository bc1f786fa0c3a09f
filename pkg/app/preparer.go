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

// preparerConns is the most connections of one node to its agent (P8).
const preparerConns = 6

// PreparerConfig is the configuration of a preparer.
type PreparerConfig struct {
	Common
	Node    string
	Address string   // given to pods as NODE_ADDRESS
	Labels  []string // key=value
	Slots   int
	CPU     int64 // thousandths of a core; zero: not limited; Detect: what the machine has
	Memory  int64 // bytes; zero and Detect as in CPU
	// Pods leave at least these amounts to other programs; zero: no reserve.
	ReserveCPU    int64 // thousandths of a core
	ReserveMemory int64 // bytes
	PortsMin      int   // of the range for dynamic ports
	PortsMax      int

	Isolation string // IsolationAuto, IsolationOn or IsolationOff
	UserRange string // first-last
	// ContainerUserRange is first-last. The first number is a multiple of install.BlockSize, and so is the one after
	// the last.
	ContainerUserRange string
	Capabilities       []string // that manifests may add to what a container has
	AllowRoot          bool     // manifests may ask for the user root

	Artifacts artifact.Config // only ReserveBytes may be zero; it holds for images, too
	Images    ImageConfig
	API       nodeapi.Config
	Intents   string // IntentsWatch or IntentsPush; empty: watch
	// PullEvery is for IntentsPush: the time without a push after which a node reads its intents; zero: a minute.
	PullEvery   time.Duration
	HooksDir    string        // the node's own hooks; empty: none
	KeepStopped time.Duration // how long home, logs and versions of a stopped pod are kept
	TakeOver    bool          // take the node's name from another host, once
	TrustPolicy string        // file that decides which manifests the node runs; empty: all
}

// record validates the configuration, and returns the node's record.
func (p *PreparerConfig) record() (node.Node, error) {
	var errs field.Errors
	errs.CheckName("node", p.Node)
	checkAddress(&errs, p.Address)
	labels := map[string]string{}
	for _, l := range p.Labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			errs.Add("label", l, "key=value")
			continue
		}
		labels[key] = value
	}
	manifest.ValidateLabels(&errs, "label", labels)
	p.ports(&errs)
	if p.KeepStopped <= 0 {
		errs.Add("keep-stopped", p.KeepStopped.String(), "a length of time greater than zero, such as 24h")
	}
	if p.HooksDir != "" {
		if info, err := os.Stat(p.HooksDir); err != nil || !info.IsDir() {
			errs.Add("hooks-dir", p.HooksDir, "an existing directory")
		}
	}
	p.ranges(&errs)
	if p.Isolation == IsolationOff && p.ReserveCPU+p.ReserveMemory > 0 {
		errs.Add("isolation", p.Isolation,
			"auto or on, with --reserve-cpu or --reserve-memory, because only cgroups can bound pods")
	}

	checkArtifacts(&errs, &p.Artifacts)
	p.Images.check(&errs)
	p.api().Check(&errs)
	if !slices.Contains([]string{"", IntentsWatch, IntentsPush}, p.Intents) {
		errs.Add("intents", p.Intents, IntentsWatch+" or "+IntentsPush)
	}
	if p.PullEvery != 0 && (p.PullEvery < time.Second || p.PullEvery > time.Hour) {
		errs.Add("intents-every", p.PullEvery.String(), "a length of time from 1s to 1h")
	}
	capacity, err := node.ParseCapacity(p.Slots, givenOr0(p.CPU), givenOr0(p.Memory))
	if inner, ok := err.(field.Errors); ok { //nolint:errorlint // ParseCapacity returns nothing else
		errs = append(errs, inner...)
	}
	p.validate(&errs)
	return node.Node{
		Name: p.Node, Labels: labels, Capacity: capacity, Address: p.Address, Version: Version,
		TTL:       field.Duration(p.TTL),
		PortRange: node.PortRange{Min: p.PortsMin, Max: p.PortsMax},
	}, errs.Err()
}

func givenOr0(amount int64) int64 {
	if amount == Detect {
		return 0
	}
	return amount
}

// How a node learns of its intents.
const (
	IntentsWatch = "watch" // by a standing query
	IntentsPush  = "push"  // farms push to it (ADR 26)
)

// intents returns the record's value. If the node's API does not allow pushes, it watches Consul.
func (p *PreparerConfig) intents(log obs.Logger) string {
	if p.Intents != IntentsPush {
		return ""
	}
	if why := p.api().Pushable(); why != "" {
		log.WithField(obs.Reason, why).Warn("--intents push is not possible; the node watches its intents")
		return node.IntentsRefused
	}
	return node.IntentsPush
}

const maxPort = 65535

func (p *PreparerConfig) ports(errs *field.Errors) {
	if p.PortsMin < 1 || p.PortsMin > maxPort {
		errs.Add("port-min", p.PortsMin, fmt.Sprintf("a port from 1 to %d, not above --port-max", maxPort))
	}
	switch {
	case p.PortsMax < 1 || p.PortsMax > maxPort:
		errs.Add("port-max", p.PortsMax, fmt.Sprintf("a port from 1 to %d, not below --port-min", maxPort))
	case p.PortsMin > p.PortsMax && p.PortsMin <= maxPort:
		errs.Add("port-max", p.PortsMax, fmt.Sprintf("a port from --port-min, which is %d, to %d", p.PortsMin, maxPort))
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

// NewPreparer opens everything that the agent needs. Consul may be unreachable, because the node keeps its pods running
// without it.
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
	// zero means no reserve in the flag, but the default in artifact.Config
	stored.Dir, stored.ReserveBytes = b.dir.Path("artifacts"), cmp.Or(stored.ReserveBytes, -1)
	artifacts, err := artifact.New(stored)
	if err != nil {
		return nil, err
	}
	if err := refuseFormer(b.dir); err != nil {
		return nil, err
	}
	if !onMachine(cfg.Address) {
		b.log.WithField(obs.Address, cfg.Address).Warn("this machine does not have the address of --address: pods " +
			"that listen on NODE_ADDRESS cannot start. That is right only if the address is mapped to this machine " +
			"and pods listen on others; else set --address to an address of this machine")
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
			// The supervisor can restart a process while no preparer runs. The cgroup must still have the cap then.
			if caps == (machine.Total{}) || !b.started {
				isolate.Prune(cgroup)
			}
		})
	}
	err = errors.Join(err, capsErr)
	if err != nil {
		return nil, err
	}
	imageDir := b.dir.Path("images")
	can := probeContainers(ctx, imageDir, isolation, cgroup, b.log)
	record.Containers = &can
	if !can.Idmapped {
		isolation.Blocks = install.UserRange{}
	}
	var images install.Images // nil: the node runs no containers
	if len(can.Lacks) == 0 {
		if images, err = cfg.Images.open(imageDir, stored.ReserveBytes); err != nil {
			return nil, err
		}
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
	var doors claim.Doors // nil without isolation, because pods can then read the preparer's token anyway
	if cfg.Isolation != IsolationOff {
		doors = b.store
	}
	p.agent, err = preparer.New(preparer.Config{
		Doors: doors, Strict: cfg.Isolation == IsolationOn, InUse: cfg.inUse,
		Host: install.Host{
			Dir: b.dir.Path(""), HooksDir: cfg.HooksDir, Isolation: isolation, Artifacts: artifacts,
			Images: images, NoImages: can.Lacks, PullDeadline: cfg.Images.PullDeadline,
			Capabilities: cfg.Capabilities, Runtime: pods, Trust: policy,
		},
		Node: record, Store: b.store, Cache: artifacts,
		Services: b.client.Services, Log: b.log.WithField(obs.Node, cfg.Node), Metrics: preparer.NewMetrics(reg),
		KeepStopped: cfg.KeepStopped, TakeOver: cfg.TakeOver, Push: record.Intents == node.IntentsPush,
		PullEvery: cfg.PullEvery,
	})
	if err == nil {
		p.debug, err = b.openDebug(ctx, reg, p.agent.Ready)
	}
	b.started = err == nil
	return p, err
}

// Run works until ctx ends. Pods run on after that.
func (p *Preparer) Run(ctx context.Context) error {
	defer p.close()
	p.log.WithFields(obs.Fields{
		obs.Node: p.cfg.Node, obs.PID: os.Getpid(), "version": Version, "emulates": p.store.Emulates(),
	}).Info("preparer starts")
	api := func(ctx context.Context) error { return p.api.Run(ctx, p.agent) } // logs, and commands in pods
	err := together(ctx, p.agent.Run, p.serve, p.debug.Run, api, p.store.UntilBehind, p.untilLifeline)
	p.log.WithField(obs.Reason, fmt.Sprint(err)).Info("preparer ended; its pods run on")
	return err
}

func (p *Preparer) serve(ctx context.Context) error {
	session := consul.SessionConfig{
		Kind: "preparer", Name: p.cfg.Node, Scope: p.store.Keys().Prefix(), TTL: p.cfg.TTL, Journal: p.dir,
		OnEvent: p.sessionEvents,
		Meta:    p.store.PreparerMeta(p.cfg.Node), SessionTTL: preparerSessionTTL,
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

// trustPolicy returns nil if no file is named. While the file is unreadable, the node runs no new manifest. The
// preparer still starts, because the pods that run here need it.
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
		log.WithField(obs.Error, err).Error("trust policy unreadable; no new manifest is run until it is corrected")
	} else {
		log.WithFields(obs.Fields{"require_signature": *policy.RequireSignature, "rules": len(policy.Rules)}).
			Info("trust policy read")
	}
	return node, nil
}
