package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
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

// Check is one check. Exactly one of HTTP, TCP, TTL and Alias is set.
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
	// With is the id of another service of the agent that must pass besides.
	With string `json:",omitempty"`
	// GoneAfter: after so long without passing the agent removes the service; zero: never.
	GoneAfter time.Duration `json:",omitempty"`
	// Passing: it begins as one that passes, because what it looks at was just seen to pass. It is no part of what the check is.
	Passing bool `json:"-"`
}

// registration returns the check in the API's form.
func (c *Check) registration(s *Service) *api.AgentServiceCheck {
	reg := &api.AgentServiceCheck{CheckID: ServiceCheckID(s.ID), Name: "health of " + s.Name, Status: api.HealthCritical}
	if c.Passing {
		reg.Status = api.HealthPassing
	}
	switch {
	case c.Alias != "":
		reg.AliasService = c.Alias
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
type Services struct{ c *Client }

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
func (a *Services) RegisterService(ctx context.Context, s Service) error {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// Consul would hand the state of a check on to the one that replaces it, whatever that one looks at.
	if err := a.deregisterOther(ctx, s); err != nil {
		return err
	}
	reg := &registration{AgentServiceRegistration: api.AgentServiceRegistration{
		ID: s.ID, Name: s.Name, Address: s.Address, Port: s.Port, Tags: s.Tags, Meta: s.Meta,
	}}
	if s.Check != nil {
		reg.Checks = append(reg.Checks, registeredCheck{*s.Check.registration(&s), s.Check.HTTP != ""})
		if s.Check.With != "" {
			with := Check{Alias: s.Check.With, Passing: s.Check.Passing}
			one := with.registration(&s)
			one.CheckID, one.Name = s.ID+withSuffix, "health of "+s.Check.With
			reg.Checks = append(reg.Checks, registeredCheck{AgentServiceCheck: *one})
		}
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
	resp, err := a.c.web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if resp.StatusCode != http.StatusOK {
		return api.StatusError{Code: resp.StatusCode, Body: string(said)}
	}
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

// ServiceCheckID returns the id of the check that RegisterService makes for a service.
func ServiceCheckID(serviceID string) string { return serviceID + "-health" }

// withSuffix ends the ids of checks that have a service depend on another one.
const withSuffix = "-with"

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
	Passing bool   // its check passes, or it has none
	Check   string // name of the check; empty: it has none
	Output  string // what the check said last
	// Failed: the agent has run the check and it did not pass. A check that was registered as critical and has not run
	// yet has not failed, nor has one that the agent could not run.
	Failed bool
}

// LocalServices returns the services at the local agent whose meta has the value under the key, by their ids. A service
// without a check passes.
func (a *Services) LocalServices(ctx context.Context, metaKey, metaValue string) (map[string]Health, error) {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	// The filter language knows no escapes in double quotes; in backticks everything but they stands for itself.
	if strings.ContainsAny(metaKey+metaValue, "`\r") {
		return nil, fmt.Errorf("read services of the local agent: a filter cannot hold meta %q=%q", metaKey, metaValue)
	}
	opts := Default.options(ctx)
	services, err := a.c.api.Agent().ServicesWithFilterOpts(fmt.Sprintf("Meta[`%s`] == `%s`", metaKey, metaValue), opts)
	if err != nil {
		return nil, fmt.Errorf("read services of the local agent: %w", err)
	}
	health := make(map[string]Health, len(services))
	if len(services) == 0 {
		return health, nil
	}
	// Those of RegisterService alone: where a service has a second one, that doubles what there is to read.
	checks, err := a.c.api.Agent().ChecksWithFilterOpts("CheckID not matches `"+withSuffix+"$`", opts)
	if err != nil {
		return nil, fmt.Errorf("read checks of the local agent: %w", err)
	}
	for id := range services {
		health[id] = Health{Passing: true}
		if check, has := checks[ServiceCheckID(id)]; has {
			passing := check.Status == api.HealthPassing
			health[id] = Health{Passing: passing, Check: check.Name, Output: check.Output, Failed: !passing && saysFailed(check.Output)}
		}
	}
	return health, nil
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
