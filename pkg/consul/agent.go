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

// AgentNode returns the node name of the local agent. The API's Self takes no context, and a suspended agent never
// answers.
func (c *Client) AgentNode(ctx context.Context) (string, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	var self struct{ Config struct{ NodeName string } }
	if _, err := c.api.Raw().Query("/v1/agent/self", &self, Default.options(ctx)); err != nil {
		return "", fmt.Errorf("ask the local Consul agent who it is: %w", err)
	}
	return self.Config.NodeName, nil
}

// Service is a pod's service at the local agent.
type Service struct {
	ID      string
	Name    string
	Address string
	Port    int
	Tags    []string
	Meta    map[string]string
	Check   *Check
}

// Check is one check. Exactly one of HTTP, TCP, TTL and Alias is set. Down can be set too.
type Check struct {
	// HTTP is a URL whose GET must answer 2xx. Redirects are not followed, because the pod would choose the target.
	HTTP     string
	TCP      string // host:port that must accept a connection
	Interval time.Duration
	Timeout  time.Duration
	// These are how many equal answers in a row change the state of the check; zero: one.
	SuccessThreshold, FailureThreshold int
	// TTL is after how long without UpdateCheck the check becomes critical. The agent does not run it.
	TTL time.Duration
	// Alias is the id of another service of the agent, whose state this check has.
	Alias string `json:",omitempty"`
	// Down is why the service does not work. Then the check is critical and runs nothing. Down and Passing are not part
	// of the check's identity.
	Down string `json:"-"`
	// GoneAfter is after how long of a critical TTL check the agent removes the service; zero: never.
	GoneAfter time.Duration `json:",omitempty"`
	// Passing: the check starts as passing, because the service passed a moment ago.
	Passing bool `json:"-"`
}

// forEver is the TTL of a check that keeps its state, because the agent requires a TTL.
const forEver = 10 * 365 * 24 * time.Hour

func (c *Check) registration(s *Service) *api.AgentServiceCheck {
	reg := &api.AgentServiceCheck{
		CheckID: ServiceCheckID(s.ID), Name: "health of " + s.Name,
		Status: api.HealthCritical,
	}
	if c.Passing {
		reg.Status = api.HealthPassing
	}
	switch {
	// Consul copies the state of an old check to a new one with the same id. So the next two have their own ids.
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

// Services has the calls about services at the local agent.
type Services struct {
	c    *Client
	last atomic.Pointer[localAnswer]
}

// TokenID is Client.TokenID.
func (a *Services) TokenID() string { return a.c.TokenID() }

// UpdateCheck sets the state of a TTL check at the local agent.
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

// RegisterService registers a service and its check at the local agent, and replaces a service with the same id. The
// check keeps the state of an equal service, so a restarted preparer does not take a healthy pod out of service.
func (a *Services) RegisterService(ctx context.Context, s Service) error {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// Consul copies the state of the old check to a new one with the same id, even if that tests something else. So a
	// service that differs is removed first. An alias gets the state of the other service at once.
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

type registration struct {
	api.AgentServiceRegistration
	Checks []registeredCheck `json:",omitempty"`
}

// registeredCheck is the API's type with a field that the API client lacks: do not follow redirects.
type registeredCheck struct {
	api.AgentServiceCheck
	DisableRedirects bool `json:",omitempty"`
}

func (a *Services) register(ctx context.Context, reg *registration) error {
	body, err := json.Marshal(reg)
	if err == nil {
		_, err = a.c.ask(ctx, http.MethodPut, "/v1/agent/service/register?replace-existing-checks=true", body)
	}
	return err
}

const maxRefusal = 4 << 10

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

// ServiceCheckID returns the id of a service's check, unless the check is an alias or down.
func ServiceCheckID(serviceID string) string { return serviceID + checkSuffix }

const checkSuffix, downSuffix = "-health", "-down"

// DeregisterService removes a service from the local agent. A missing service is no error.
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

// Health is the state of a service at the local agent.
type Health struct {
	Passing bool   // the check passes, or is an alias, or there is no check
	Down    bool   // the service was registered with Check.Down
	Check   string // name of the check; empty: there is no check, or it is an alias
	Output  string // the latest output of the check
	// Failed: the agent has run the check, and it did not pass. False if the agent has not run it, or could not.
	Failed bool
}

// LocalServices returns, by id, the services at the local agent with metaValue under metaKey in their meta. Callers
// share the map and must not change it.
func (a *Services) LocalServices(ctx context.Context, metaKey, metaValue string) (map[string]Health, error) {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// The filter language has no escapes in double quotes. In backticks every other character stands for itself.
	if strings.ContainsAny(metaKey+metaValue, "`\r") {
		return nil, fmt.Errorf("read services of the local agent: a filter cannot hold meta %q=%q", metaKey, metaValue)
	}
	got := localAnswer{filter: fmt.Sprintf("Meta[`%s`] == `%s`", metaKey, metaValue)}
	var err error
	if got.services, err = a.read(ctx, "/v1/agent/services", got.filter); err != nil {
		return nil, fmt.Errorf("read services of the local agent: %w", err)
	}
	if string(bytes.TrimSpace(got.services)) == "{}" {
		return map[string]Health{}, nil
	}
	if got.checks, err = a.read(ctx, "/v1/agent/checks",
		"CheckID matches `("+checkSuffix+"|"+downSuffix+")$`"); err != nil {
		return nil, fmt.Errorf("read checks of the local agent: %w", err)
	}
	if last := a.last.Load(); last != nil && last.same(&got) {
		return last.health, nil
	}
	if err := got.decode(); err != nil {
		return nil, fmt.Errorf("read services and checks of the local agent: %w", err)
	}
	a.last.Store(&got)
	return got.health, nil
}

// localAnswer is the agent's answer. Services keeps the decoded answer, because a node asks every two seconds, and
// mostly gets the same.
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
			l.health[id] = Health{Passing: passing, Check: check.Name, Output: check.Output, Failed: !passing &&
				saysFailed(check.Output)}
		}
	}
	return nil
}

func (a *Services) read(ctx context.Context, path, filter string) ([]byte, error) {
	return a.c.ask(ctx, http.MethodGet, path+"?"+url.Values{"filter": {filter}}.Encode(), nil)
}

// ask returns the body of the agent's answer. A status other than 200 is an api.StatusError.
func (c *Client) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.web.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a part of the reason is enough
		return nil, api.StatusError{Code: resp.StatusCode, Body: string(reason)}
	}
	return io.ReadAll(resp.Body)
}

// httpAnswer begins the output of an HTTP check that got a response.
const httpAnswer = "HTTP GET "

// lacking has texts in the output of a check that the agent could not run, because it lacked files or ports.
var lacking = []string{": socket: ", "too many open files", "cannot assign requested address"}

// saysFailed reports whether the agent has run a check that does not pass. Before the first run, output is empty.
func saysFailed(output string) bool {
	lacks := func(text string) bool { return strings.Contains(output, text) }
	return output != "" && (strings.HasPrefix(output, httpAnswer) || !slices.ContainsFunc(lacking, lacks))
}
