package schema

import (
	"reflect"
	"strings"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// What names the schemas. They are identifiers: nothing needs to be found there.
const (
	ManifestID   = "urn:rcfarm:manifest:v1"
	ControllerID = "urn:rcfarm:controller:v1"
	ServiceID    = "urn:rcfarm:service:v1"
)

// Manifest returns the schema of manifests.
func Manifest() ([]byte, error) {
	m := newMaker(manifest.RulesOfSchema(false))
	m.texts.read("", docs.Manifest)
	return m.encode(ManifestID, "rcfarm pod manifest", reflect.TypeFor[manifest.Manifest]())
}

// Controller returns the schema of the documents of controllers. ignored are the fields that programs write into them and that mean
// nothing there.
func Controller(ignored []string) ([]byte, error) {
	m := newMaker(manifest.RulesOfSchema(false))
	m.texts.read("", docs.Controller)
	m.texts.read("pod.", docs.Manifest)
	m.rules[packageOf[rc.Spec]()] = controllerRules()
	t := reflect.TypeFor[rc.Spec]()
	m.more = map[reflect.Type][]string{t: ignored}
	return m.encode(ControllerID, "rcfarm replication controller", t)
}

// Service returns the schema of the documents of services.
func Service() ([]byte, error) {
	m := newMaker(manifest.RulesOfSchema(true))
	m.texts.read("", docs.Controller)
	m.texts.read("pod.", docs.Manifest)
	m.texts.read("", section(docs.Deploying, "## The document"))
	m.texts.read("update.", section(docs.Deploying, "### `update`"))
	m.texts.read("pre_deploy.", section(docs.Deploying, "### `pre_deploy`"))
	m.rules[packageOf[rc.Spec]()] = controllerRules()
	m.rules[packageOf[rollout.Knobs]()] = updateRules()
	m.rules[packageOf[record.ServiceSpec]()] = serviceRules()
	m.types[reflect.TypeFor[rollout.Amount]()] = amount(0)
	return m.encode(ServiceID, "rcfarm service", reflect.TypeFor[record.ServiceSpec]())
}

func packageOf[T any]() string { return reflect.TypeFor[T]().PkgPath() }

func newMaker(manifests manifest.SchemaRules) *maker {
	return &maker{
		rules: map[string]map[string]node{packageOf[manifest.Manifest](): manifests.Fields}, types: manifests.Types, defs: manifests.Defs, texts: texts{},
	}
}

func controllerRules() map[string]node {
	return map[string]node{
		"Spec": {"oneOf": []any{ // exactly one of both is given
			node{"required": []string{"replicas"}, "properties": node{"replicas": node{"type": "integer"}}},
			node{"required": []string{"replica_groups"}, "properties": node{"replica_groups": node{"minItems": 1}}},
		}},
		"Spec.name":           manifest.NameRule(),
		"Spec.labels":         manifest.LabelRule(),
		"Spec.pod_labels":     manifest.LabelRule(pod.RCIDLabel, pod.PodIDLabel),
		"Spec.node_selector":  {"maxLength": rc.MaxSelectorBytes},
		"Spec.spread":         manifest.LabelKeyRule(),
		"Spec.replicas":       count(),
		"Spec.replica_groups": {"maxItems": rc.MaxGroups},
		"Spec.max_per_node":   count(),
		"Spec.min_available":  count(),
		"Spec.max_surge":      count(),
		"Spec.strategy":       {"enum": []string{string(rc.Dynamic), string(rc.Static)}},
		"ReplicaGroup.role":   manifest.NameRule(),
		"ReplicaGroup.count":  count(),
		"NodeLoss.action":     {"enum": []string{"replace", "keep"}},
	}
}

func serviceRules() map[string]node {
	rules := map[string]node{
		"ServiceSpec.digests": {"enum": []string{string(record.Always), string(record.Missing), string(record.Never)}},
		"PreDeploy.args":      {"maxItems": manifest.MaxArgs},
		"PreDeploy.env":       {"maxProperties": manifest.MaxEnv},
	}
	for name, rule := range controllerRules() { // the fields that both have are alike
		if at, is := strings.CutPrefix(name, "Spec"); is {
			rules["ServiceSpec"+at] = rule
		}
	}
	rules["ServiceSpec.name"]["maxLength"] = record.MaxNameBytes
	rules["ServiceSpec.labels"] = manifest.LabelRule(record.ServiceLabel)
	return rules
}

func updateRules() map[string]node {
	return map[string]node{
		"Knobs.strategy":         {"enum": rollout.StrategyNames()},
		"Knobs.order":            {"enum": []string{rollout.StartFirst, rollout.StopFirst}},
		"Knobs.on_timeout":       {"enum": []string{rollout.OnTimeoutRollback, rollout.OnTimeoutPause, rollout.OnTimeoutContinue}},
		"Knobs.step":             amount(1),
		"Knobs.min_available":    {"minimum": 0},
		"Knobs.revision_history": {"minimum": 0},
		"Canary.pods":            {"minimum": 1},
		"Hook.url":               {"pattern": "^https?://"},
		"Hook.retries":           {"minimum": 0},
	}
}

func count() node { return node{"minimum": 0, "maximum": rc.MaxReplicas} }

// amount is a number of pods, or a share.
func amount(least int) node {
	share := `^0*(?:100|[0-9]{1,2})%$`
	if least > 0 {
		share = `^0*(?:100|[1-9][0-9]?)%$`
	}
	return node{"anyOf": []any{node{"type": "integer", "minimum": least}, node{"type": "string", "pattern": share}}}
}
