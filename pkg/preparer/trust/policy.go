package trust

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

const (
	maxPolicyBytes  = 1 << 20 // of the policy's file and of the signers' file, each
	maxRules        = 256
	maxRuleEntries  = 256 // entries in each list of one rule
	maxSignerLength = 256
)

// Policy is the content of an operator's file: which manifests the node runs.
type Policy struct {
	RequireSignature *bool `json:"require_signature"` // whether a manifest without a signature is refused
	// AllowedSigners is the absolute path of a file in OpenSSH's format allowed_signers.
	AllowedSigners string `json:"allowed_signers,omitempty"`
	Rules          []Rule `json:"rules,omitempty"`

	signers []signer
}

// Rule lets signers run pods. Without Users, Paths, Images or Resources it does not limit these; an empty list allows
// nothing.
type Rule struct {
	Signers []string `json:"signers"` // principals as in allowed_signers; "*" for all of them
	Pods    []string `json:"pods"`    // pod ids; '*' stands for any text, '?' for one character
	// Users has patterns of accounts that manifests may name, with the wildcards of Pods.
	Users []string `json:"users,omitempty"`
	// Paths has patterns of the node's paths that manifests may name (Manifest.HostPaths), with the wildcards of Pods.
	Paths []string `json:"paths,omitempty"`
	// Images has patterns of registry/repository of the images that manifests may name, with the wildcards of Pods.
	Images []string `json:"images,omitempty"`
	// Resources is the most that all launchables of a pod may ask for together; zero: not limited. Each launchable
	// must set a resource that is limited.
	Resources manifest.Resources `json:"resources,omitzero"`
}

// Everyone stands in a rule's signers for all signers.
const Everyone = "*"

const policyAllowed = "one YAML or JSON document: the trust policy of a node"

var podPattern = regexp.MustCompile(`^[a-z0-9*?-]{1,63}$`)

// Load reads a policy and its file of signers. It refuses a file that the group or others may write, because they could
// allow themselves to run anything.
func Load(file string) (*Policy, error) {
	data, err := readGuarded(file)
	if err != nil {
		return nil, err
	}
	converted, err := document.ToJSON(data, policyAllowed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var p Policy
	if err := field.Decode(converted, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := p.validate().Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if p.AllowedSigners == "" {
		return &p, nil
	}
	if data, err = readGuarded(p.AllowedSigners); err != nil {
		return nil, fmt.Errorf("allowed signers: %w", err)
	}
	if p.signers, err = parseSigners(data, time.Local); err != nil {
		return nil, fmt.Errorf("allowed signers: %s: %w", p.AllowedSigners, err)
	}
	return &p, nil
}

func (p *Policy) validate() field.Errors {
	var errs field.Errors
	if p.RequireSignature == nil {
		errs.Missing("require_signature", "true or false")
	}
	needed := p.RequireSignature != nil && *p.RequireSignature
	switch {
	case p.AllowedSigners == "" && (needed || len(p.Rules) > 0):
		errs.Missing("allowed_signers", "the absolute path of a file in OpenSSH's allowed_signers format")
	case p.AllowedSigners != "" && !filepath.IsAbs(p.AllowedSigners):
		errs.Add("allowed_signers", p.AllowedSigners, "an absolute path")
	}
	entries := fmt.Sprintf("1 to %d entries", maxRules)
	switch {
	case len(p.Rules) == 0 && (needed || p.AllowedSigners != ""):
		errs.Missing("rules", entries+`; {signers: ["*"], pods: ["*"]} lets every allowed signer run every pod`)
	case len(p.Rules) > maxRules:
		errs.Add("rules", field.Text(fmt.Sprintf("%d entries", len(p.Rules))), entries)
	}
	for i, r := range p.Rules {
		errs.Nest(fmt.Sprintf("rules[%d]", i), r.validate())
	}
	return errs
}

func (r *Rule) validate() field.Errors {
	var errs field.Errors
	list := func(name string, entries []string, ok func(string) bool, allowed string) {
		if n := len(entries); n > maxRuleEntries {
			errs.Add(name, field.Text(fmt.Sprintf("%d entries", n)), fmt.Sprintf("at most %d entries", maxRuleEntries))
		}
		for i, entry := range entries {
			if !ok(entry) {
				errs.Add(fmt.Sprintf("%s[%d]", name, i), entry, allowed)
			}
		}
	}
	needed := func(name string, entries []string, ok func(string) bool, allowed string) {
		if len(entries) == 0 {
			errs.Missing(name, fmt.Sprintf("1 to %d entries: %s", maxRuleEntries, allowed))
		}
		list(name, entries, ok, allowed)
	}
	needed("signers", r.Signers, func(s string) bool {
		return s == Everyone || s != "" && len(s) <= maxSignerLength && !strings.ContainsAny(s, "*?,! \t\"")
	}, `a principal such as alice@example.com, or "*" for everybody in allowed_signers`)
	needed("pods", r.Pods, podPattern.MatchString,
		"a pod id such as web, with '*' for any text and '?' for one character")
	list("users", r.Users, func(s string) bool { return s != "" && len(s) <= maxSignerLength },
		"an account of the node such as deploy, with '*' for any text and '?' for one character")
	list("paths", r.Paths, func(s string) bool {
		return len(s) <= manifest.MaxTextBytes && (s == "*" || filepath.IsAbs(s) && filepath.Clean(s) == s)
	}, "an absolute path such as /srv/web/*, without '.', '..' and empty parts, with '*' for any text and '?' for "+
		"one character")
	list("images", r.Images, func(s string) bool { return s != "" && len(s) <= manifest.MaxTextBytes },
		"a registry and repository such as registry.example.com/team/*, with '*' for any text and '?' for one "+
			"character")
	for _, limit := range r.limits(manifest.Usage{}) {
		if limit.most < 0 {
			errs.Add("resources."+limit.name, limit.most, limit.unit+", zero (not limited) or more")
		}
	}
	return errs
}

// ErrRefused means that the node's policy refuses a manifest. The text has the reason, and what the operator can do.
var ErrRefused = errors.New("this node's trust policy refuses it")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Check returns nil if the node may run a manifest, else an ErrRefused. If the manifest has a signature and the policy
// has signers, the signature must be valid even if it is not required.
func (p *Policy) Check(now time.Time, m *manifest.Manifest, canonical []byte, armored string) error {
	const sign = "rcctl apply -f FILE --sign-key KEY"
	switch {
	case armored == "" && !*p.RequireSignature, p.AllowedSigners == "":
		return nil
	case armored == "":
		return refuse("it is not signed; sign it: %s", sign)
	}
	sig, err := Parse(armored)
	if err == nil {
		err = sig.Verify(canonical)
	}
	if err != nil {
		return refuse("%w; sign it again: %s", err, sign)
	}
	var why error
	known := false
	for i := range p.signers {
		s := &p.signers[i]
		if !same(s.key, sig.sig.PublicKey) {
			continue
		}
		known = true
		if why = s.usable(now); why == nil {
			why = p.lets(s, m)
		}
		if why == nil {
			return nil
		}
	}
	if !known {
		return refuse("it is signed with %s, which is not in %s; sign it with a key that is, or add this one",
			sig.Key(), p.AllowedSigners)
	}
	return refuse("signed with %s: %w", sig.Key(), why)
}

func (p *Policy) lets(s *signer, m *manifest.Manifest) error {
	why := fmt.Errorf("no rule lets %s run pods called %s; sign it with the key of somebody who may, or add a rule",
		s.principals, m.ID)
	for i := range p.Rules {
		r := &p.Rules[i]
		if !anyGlob(r.Pods, m.ID) ||
			!slices.ContainsFunc(r.Signers,
				func(who string) bool { return who == Everyone || matchList(who, s.principals) }) {
			continue
		}
		beyond := r.beyond(m).Err()
		if beyond == nil {
			return nil
		}
		why = fmt.Errorf("rules[%d] lets %s run pods called %s, but not this: %w", i, s.principals, m.ID, beyond)
	}
	return why
}
