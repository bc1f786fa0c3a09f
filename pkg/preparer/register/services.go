package register

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// MetaNode distinguishes the services of preparers that share an agent.
const (
	MetaNode   = "rcfarm_node"
	MetaRC     = "rcfarm_rc"
	MetaRole   = "rcfarm_role"
	MetaIndex  = "rcfarm_index"
	MetaDigest = "rcfarm_digest"
)

const servicePrefix = "rcfarm-pod-"

// ServiceID returns the id of a pod's service at the local agent.
func ServiceID(nodeName string, id pod.Identity) string {
	return fmt.Sprintf("%s%s-%s-%s-%d", servicePrefix, nodeName, id.RCID, id.Role, id.Index)
}

// StandbyServiceID returns the id while the pod is a standby. It differs from ServiceID, so that the new service can be
// registered before the old one is removed.
func StandbyServiceID(nodeName string, id pod.Identity) string {
	return ServiceID(nodeName, id) + "..standby" // neither the end of a main id nor the name of a port has two dots
}

// serviceIDs returns the main service first.
func serviceIDs(nodeName string, id pod.Identity, m *manifest.Manifest, standby bool) []string {
	main := ServiceID(nodeName, id)
	if standby {
		main = StandbyServiceID(nodeName, id)
	}
	ids := []string{main}
	if m == nil {
		return ids
	}
	for _, named := range m.Services()[1:] {
		ids = append(ids, main+"."+named.Port) // neither a role nor an index has a dot
	}
	return ids
}

// servicesOf returns one service for each port that the manifest registers. The main service comes first, and its check
// applies to all.
func servicesOf(n *node.Node, p *Pod, standby bool) []consul.Service {
	id, m := p.ID, p.Manifest
	ids, named := serviceIDs(n.Name, id, m, standby), m.Services()
	var tags []string
	meta := map[string]string{}
	if m.Service != nil {
		tags = m.Service.Tags
		maps.Copy(meta, m.Service.Meta)
	}
	maps.Copy(meta, map[string]string{
		MetaNode: n.Name, MetaRC: id.RCID, MetaRole: id.Role,
		MetaIndex: strconv.Itoa(id.Index), MetaDigest: p.Installed.Digest,
	})
	services := make([]consul.Service, len(named))
	for i := range named {
		services[i] = consul.Service{
			ID: ids[i], Name: named[i].Name, Tags: tags, Meta: meta,
			Address: n.Address, Port: p.Installed.Ports[named[i].Port],
		}
		if standby {
			services[i].Name = named[i].Standby()
		}
		switch {
		case i > 0:
			services[i].Check = &consul.Check{Alias: ids[0]}
		case m.Health == nil:
			services[i].Check = processCheck(n, p)
		default:
			services[i].Check = checkOf(n, p, m.Health)
		}
	}
	return services
}

func checkOf(n *node.Node, p *Pod, h *manifest.Health) *consul.Check {
	check := &consul.Check{
		Interval: h.Interval.Or(manifest.DefaultHealthInterval), Timeout: h.Timeout.Or(manifest.DefaultHealthTimeout),
		SuccessThreshold: h.SuccessThreshold, FailureThreshold: h.FailureThreshold,
	}
	at := func(port string) string { return net.JoinHostPort(n.Address, strconv.Itoa(p.Installed.Ports[port])) }
	switch {
	case h.HTTP != nil:
		check.HTTP = "http://" + at(h.HTTP.Port) + p.HTTPPath
	case h.Script != nil:
		check = &consul.Check{TTL: scriptTTL(h)}
	case h.TCP != nil:
		check.TCP = at(h.TCP.Port)
	}
	return check
}

type registered struct {
	ids      []string
	main     consul.Health
	all, any bool
}

func registeredOf(local map[string]consul.Health, ids []string) registered {
	r := registered{ids: ids, main: local[ids[0]], all: true}
	for _, id := range ids {
		_, has := local[id]
		r.all, r.any = r.all && has, r.any || has
	}
	return r
}

func fingerprint(services []consul.Service) string {
	sum := sha256.New()
	for i := range services {
		data, err := json.Marshal(&services[i])
		if err != nil {
			return "" // impossible, because consul.Service has plain fields only
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// vouchedFile has the id of the token of the registrations. The agent sends changes of the pods' health to the servers
// with this token. If the token is deleted in Consul, such changes do not arrive any more.
const vouchedFile = "services-token"

// noToken stands for no token. If the file is missing, an earlier release registered without one.
const noToken = "none"

func readVouched(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, vouchedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noToken, nil
	case err != nil:
		return "", fmt.Errorf("read which token services were registered with: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// vouchAnew registers the services of all pods again if the token has changed. Their health does not change.
func (r *Registrar) vouchAnew(ctx context.Context) error {
	token := r.cfg.Services.TokenID()
	if r.vouched == token {
		return nil
	}
	registered := 0
	for _, p := range r.cfg.Pods(time.Now()) {
		if !p.Up || p.Manifest == nil {
			continue
		}
		if same, err := r.register(ctx, changeOf(&r.cfg.Node, &p), true); err != nil {
			return err
		} else if same {
			registered++
		}
	}
	if err := durable.ReplaceFile(filepath.Join(r.cfg.Dir, vouchedFile), []byte(token+"\n")); err != nil {
		return fmt.Errorf("note which token services were registered with: %w", err)
	}
	r.vouched = token
	r.cfg.Log.WithField("services", registered).Info("services registered with another token")
	return nil
}
