package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

// AgentNode returns the node name of the local agent. (The API's Self takes no context, and a paused agent answers
// never.)
func (c *Client) AgentNode(ctx context.Context) (string, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	var self struct{ Config struct{ NodeName string } }
	if _, err := c.api.Raw().Query("/v1/agent/self", &self, Default.options(ctx)); err != nil {
		return "", fmt.Errorf("ask the local Consul agent who it is: %w", err)
	}
	return self.Config.NodeName, nil
}

// Service is a pod as the local agent knows it, with the check that the agent runs.
type Service struct {
	ID      string
	Name    string
	Address string
	Port    int
	Tags    []string
	Meta    map[string]string
	Check   *Check
}

// Check is one check. Exactly one of HTTP, TCP, TTL and Alias is set; Down may be set besides.
type Check struct {
	HTTP     string // URL for a GET that must answer 2xx; redirects are not followed, as the pod would choose whom the agent asks
	TCP      string // host:port that must accept a connection
	Interval time.Duration
	Timeout  time.Duration
	// SuccessThreshold and FailureThreshold are how many equal answers in a row change its state; zero means one.
	SuccessThreshold, FailureThreshold int
	// TTL makes it one that the agent does not run: it is critical when UpdateCheck was silent for so long.
	TTL time.Duration
	// Alias is the id of another service of the agent whose state is this one's, too.
	Alias string `json:",omitempty"`
	// Down says why the service does not work. While it is set, the check is critical and looks at nothing. Like Passing,
	// it is no part of what the check is.
	Down string `json:"-"`
	// GoneAfter: after so long without passing the agent removes the service; zero: never.
	GoneAfter time.Duration `json:",omitempty"`
	// Passing: the check begins as passing, because the caller has just seen the service pass.
	Passing bool `json:"-"`
}

// forEver is the TTL of a check that keeps its state. The agent takes no check without an end.
const forEver = 10 * 365 * 24 * time.Hour

// registration returns the check in the API's form.
func (c *Check) registration(s *Service) *api.AgentServiceCheck {
	reg := &api.AgentServiceCheck{CheckID: ServiceCheckID(s.ID), Name: "health of " + s.Name, Status: api.HealthCritical}
	if c.Passing {
		reg.Status = api.HealthPassing
	}
	switch {
	// Both have ids of their own, because Consul hands the state of a check on to the one with that id which replaces it.
	case c.Down != "":
		reg.CheckID, reg.Status, reg.TTL, reg.Notes = s.ID+downSuffix, api.HealthCritical, forEver.String(), c.Down
		return reg
	case c.Alias != "":
		reg.CheckID, reg.AliasService = s.ID+"-alias", c.Alias
		return reg
	case c.TTL > 0:
		reg.TTL = c.TTL.String()
		if c.GoneAfter > 0 {
			reg.DeregisterCriticalServiceAfter = c.GoneAfter.String()
		}
		return reg
	}
	reg.HTTP, reg.TCP, reg.Interval, reg.Timeout = c.HTTP, c.TCP, c.Interval.String(), c.Timeout.String()
	reg.SuccessBeforePassing, reg.FailuresBeforeCritical = c.SuccessThreshold, c.FailureThreshold
	return reg
}

// Services are those that the local agent has.
type Services struct {
	c    *Client
	last atomic.Pointer[localAnswer]
}

// TokenID is that of the client.
func (a *Services) TokenID() string { return a.c.TokenID() }

// UpdateCheck tells the local agent the state of a service's TTL check.
func (a *Services) UpdateCheck(ctx context.Context, serviceID string, passing bool, output string) error {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	status := api.HealthCritical
	if passing {
		status = api.HealthPassing
	}
	opts := new(api.QueryOptions).WithContext(ctx)
	if err := a.c.api.Agent().UpdateTTLOpts(ServiceCheckID(serviceID), output, status, opts); err != nil {
		return fmt.Errorf("update check of service %s: %w", serviceID, err)
	}
	return nil
}

// RegisterService registers a service and its check at the local agent, replacing what it had under that id. The check
// starts critical, unless it is to begin as one that passes, except where name, address, port, tags and meta are those of the
// service that was there: then its state stays, so that a restarted preparer does not take a healthy pod out of service.
// An alias has the state of the other service at once.
func (a *Services) RegisterService(ctx context.Context, s Service) error {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// Consul hands the state of a check on to the next check with that id, also if that one looks at something else. An
	// alias finds its state at once, and a check that is down has an id of its own.
	if s.Check != nil && s.Check.Alias == "" {
		if err := a.deregisterOther(ctx, s); err != nil {
			return err
		}
	}
	reg := &registration{AgentServiceRegistration: api.AgentServiceRegistration{
		ID: s.ID, Name: s.Name, Address: s.Address, Port: s.Port, Tags: s.Tags, Meta: s.Meta,
	}}
	if s.Check != nil {
		reg.Checks = append(reg.Checks, registeredCheck{*s.Check.registration(&s), s.Check.HTTP != ""})
	}
	if err := a.register(ctx, reg); err != nil {
		return fmt.Errorf("register service %s: %w", s.ID, err)
	}
	return nil
}

// registration is the API's, with checks that have what the API's lack.
type registration struct {
	api.AgentServiceRegistration
	Checks []registeredCheck `json:",omitempty"`
}

// registeredCheck is the API's, and whether redirects are not followed, which the agent knows and the API's client does
// not.
type registeredCheck struct {
	api.AgentServiceCheck
	DisableRedirects bool `json:",omitempty"`
}

func (a *Services) register(ctx context.Context, reg *registration) error {
	body, err := json.Marshal(reg)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, a.c.base+"/v1/agent/service/register?replace-existing-checks=true", bytes.NewReader(body))
	if err != nil {
		return err
	}
	_, err = a.answer(req)
	return err
}

// maxRefusal bounds what is read of why the agent refuses, in bytes.
const maxRefusal = 4 << 10

// deregisterOther removes a service that has the id and is not the same.
func (a *Services) deregisterOther(ctx context.Context, s Service) error {
	old, _, err := a.c.api.Agent().Service(s.ID, Default.options(ctx))
	switch {
	case answered(err, http.StatusNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read service %s: %w", s.ID, err)
	case old.Service == s.Name && old.Address == s.Address && old.Port == s.Port &&
		slices.Equal(old.Tags, s.Tags) && maps.Equal(old.Meta, s.Meta):
		return nil
	}
	return a.DeregisterService(ctx, s.ID)
}

// ServiceCheckID returns the id of the check that RegisterService makes for a service, unless it is an alias or down.
func ServiceCheckID(serviceID string) string { return serviceID + checkSuffix }

const checkSuffix, downSuffix = "-health", "-down"

// DeregisterService removes a service from the local agent. One that is not there is fine.
func (a *Services) DeregisterService(ctx context.Context, id string) error {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	return deregister(ctx, a.c.api, id)
}

func deregister(ctx context.Context, at *api.Client, id string) error {
	err := at.Agent().ServiceDeregisterOpts(id, new(api.QueryOptions).WithContext(ctx))
	if err != nil && !answered(err, http.StatusNotFound) {
		return fmt.Errorf("deregister service %s: %w", id, err)
	}
	return nil
}

// Health is what the local agent says of a service.
type Health struct {
	Passing bool   // its check passes or is an alias, or it has none
	Down    bool   // it was registered as one that does not work
	Check   string // name of the check; empty: it has none, or an alias
	Output  string // what the check said last
	// Failed: the agent has run the check and it did not pass. A check that was registered as critical and has not run
	// yet has not failed, nor has one that the agent could not run.
	Failed bool
}

// LocalServices returns the services at the local agent whose meta has the value under the key, by their ids. A service
// without a check passes, and so does one whose check is an alias. The map is shared: it must not be changed.
func (a *Services) LocalServices(ctx context.Context, metaKey, metaValue string) (map[string]Health, error) {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// The filter language knows no escapes in double quotes; in backticks everything but they stands for itself.
	if strings.ContainsAny(metaKey+metaValue, "`\r") {
		return nil, fmt.Errorf("read services of the local agent: a filter cannot hold meta %q=%q", metaKey, metaValue)
	}
	said := localAnswer{filter: fmt.Sprintf("Meta[`%s`] == `%s`", metaKey, metaValue)}
	var err error
	if said.services, err = a.read(ctx, "/v1/agent/services", said.filter); err != nil {
		return nil, fmt.Errorf("read services of the local agent: %w", err)
	}
	if string(bytes.TrimSpace(said.services)) == "{}" {
		return map[string]Health{}, nil
	}
	if said.checks, err = a.read(ctx, "/v1/agent/checks", "CheckID matches `("+checkSuffix+"|"+downSuffix+")$`"); err != nil {
		return nil, fmt.Errorf("read checks of the local agent: %w", err)
	}
	if last := a.last.Load(); last != nil && last.same(&said) {
		return last.health, nil
	}
	if err := said.decode(); err != nil {
		return nil, fmt.Errorf("read services and checks of the local agent: %w", err)
	}
	a.last.Store(&said)
	return said.health, nil
}

// localAnswer is what the agent said of services and checks, and what that tells. A node asks every other second, and
// mostly hears the same: it decodes that once.
type localAnswer struct {
	filter           string
	services, checks []byte
	health           map[string]Health
}

func (l *localAnswer) same(other *localAnswer) bool {
	return l.filter == other.filter && bytes.Equal(l.services, other.services) && bytes.Equal(l.checks, other.checks)
}

func (l *localAnswer) decode() error {
	var services map[string]struct{}
	var checks map[string]struct{ Status, Name, Output string }
	if err := errors.Join(json.Unmarshal(l.services, &services), json.Unmarshal(l.checks, &checks)); err != nil {
		return err
	}
	l.health = make(map[string]Health, len(services))
	for id := range services {
		l.health[id] = Health{Passing: true}
		if check, has := checks[id+downSuffix]; has {
			l.health[id] = Health{Down: true, Check: check.Name}
		}
		if check, has := checks[ServiceCheckID(id)]; has {
			passing := check.Status == api.HealthPassing
			l.health[id] = Health{Passing: passing, Check: check.Name, Output: check.Output, Failed: !passing && saysFailed(check.Output)}
		}
	}
	return nil
}

// read returns what the agent answers at a path.
func (a *Services) read(ctx context.Context, path, filter string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.c.base+path+"?"+url.Values{"filter": {filter}}.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	return a.answer(req)
}

// answer sends a request and returns the body of the answer. A status other than 200 is an api.StatusError.
func (a *Services) answer(req *http.Request) ([]byte, error) {
	resp, err := a.c.web.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a part of the reason is better than none
		return nil, api.StatusError{Code: resp.StatusCode, Body: string(said)}
	}
	return io.ReadAll(resp.Body)
}

// httpAnswer begins what an HTTP check says that was answered.
const httpAnswer = "HTTP GET "

// lacking is what a check says that the agent could not run, for want of files or ports of its own.
var lacking = []string{": socket: ", "too many open files", "cannot assign requested address"}

// saysFailed reports whether the agent has run a check that does not pass. Output is the check's last one. A check that
// has not run yet has none.
func saysFailed(output string) bool {
	lacks := func(text string) bool { return strings.Contains(output, text) }
	return output != "" && (strings.HasPrefix(output, httpAnswer) || !slices.ContainsFunc(lacking, lacks))
}
