package schema

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Identifiers of the schemas. Nothing needs to exist at these addresses.
const (
	ManifestID   = "urn:rcfarm:manifest:v1"
	ControllerID = "urn:rcfarm:controller:v1"
	ServiceID    = "urn:rcfarm:service:v1"
)

// Schemas returns the schemas by the path of their files below root, the directory of the repository.
func Schemas(root string) (map[string]string, error) {
	docs := filepath.Join(root, "docs")
	var pages [3]string
	for i, name := range []string{"manifest.md", "controller.md", "deploying.md"} {
		data, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			return nil, err
		}
		pages[i] = string(data)
	}
	all := map[string]string{}
	for name, make := range map[string]func(manifests, controllers, deploying string) (string, error){
		"manifest": ofManifests, "controller": ofControllers, "service": ofServices,
	} {
		text, err := make(pages[0], pages[1], pages[2])
		if err != nil {
			return nil, fmt.Errorf("schema of a %s: %w", name, err)
		}
		all[filepath.Join(docs, name+".schema.json")] = text
	}
	return all, nil
}

func ofManifests(manifests, _, _ string) (string, error) {
	m := newMaker(false)
	m.texts.read("", manifests)
	return m.encode(ManifestID, "rcfarm pod manifest", reflect.TypeFor[manifest.Manifest]())
}

// ofControllers also accepts the fields that programs write into such documents, although they have no meaning there.
func ofControllers(manifests, controllers, _ string) (string, error) {
	m := newMaker(false)
	m.texts.read("", controllers)
	m.texts.read("pod.", manifests)
	m.texts.ofGroups()
	m.rules[packageOf[rc.Spec]()] = controllerRules()
	m.types[reflect.TypeFor[rc.Spread]()] = spreadRule()
	t := reflect.TypeFor[rc.Spec]()
	m.more = map[reflect.Type][]string{t: field.Names[inspect.ServerFields]()}
	return m.encode(ControllerID, "rcfarm replication controller", t)
}

func ofServices(manifests, controllers, deploying string) (string, error) {
	m := newMaker(true)
	m.texts.read("", controllers)
	m.texts.read("pod.", manifests)
	m.texts.ofGroups()
	m.texts.read("", section(deploying, "## The document"))
	m.texts.read("update.", section(deploying, "### `update`"))
	m.texts.read("pre_deploy.", section(deploying, "### `pre_deploy`"))
	m.rules[packageOf[rc.Spec]()] = controllerRules()
	m.rules[packageOf[rollout.Knobs]()] = updateRules()
	m.rules[packageOf[record.ServiceSpec]()] = serviceRules()
	m.types[reflect.TypeFor[rollout.Amount]()] = amount(0)
	m.types[reflect.TypeFor[rc.Spread]()] = spreadRule()
	return m.encode(ServiceID, "rcfarm service", reflect.TypeFor[record.ServiceSpec]())
}

func packageOf[T any]() string { return reflect.TypeFor[T]().PkgPath() }

func controllerRules() map[string]node {
	counts := node{"not": node{"const": rc.EachNode}}
	return map[string]node{
		"Spec": {"oneOf": []any{ // exactly one of both, or the nodes decide the number
			node{
				"required":   []string{"replicas"},
				"properties": node{"replicas": node{"type": "integer"}, "mode": counts},
			},
			node{
				"required":   []string{"replica_groups"},
				"properties": node{"replica_groups": node{"minItems": 1}, "mode": counts},
			},
			node{"required": []string{"mode"}, "properties": eachNodeRules()},
		}},
		"Spec.name":           nameRule(),
		"Spec.labels":         labelRule(),
		"Spec.pod_labels":     labelRule(pod.RCIDLabel, pod.PodIDLabel),
		"Spec.node_selector":  {"maxLength": rc.MaxSelectorBytes},
		"Spec.replicas":       count(),
		"Spec.replica_groups": {"maxItems": rc.MaxGroups},
		"Spec.max_per_node":   count(),
		"Spec.min_available":  count(),
		"Spec.max_surge":      count(),
		"Spec.mode":           {"enum": []string{string(rc.Replicas), string(rc.EachNode)}},
		"Spec.strategy":       {"enum": []string{string(rc.Dynamic), string(rc.Static)}},
		"Spec.placing":        {"enum": []string{string(rc.PlaceSpread), string(rc.PlacePack)}},
		"Spec.affinity":       {"maxItems": rc.MaxPreferences},
		"Preference.selector": {"minLength": 1, "maxLength": rc.MaxSelectorBytes},
		"Preference.weight":   {"minimum": 1, "maximum": rc.MaxWeight},
		"ReplicaGroup.role":   nameRule(),
		"ReplicaGroup.count":  count(),

		"ReplicaGroup.placing":  {"enum": []string{string(rc.PlaceSpread), string(rc.PlacePack)}},
		"ReplicaGroup.affinity": {"maxItems": rc.MaxPreferences},
		"NodeLoss.action":       {"enum": []string{"replace", "keep"}},
	}
}

func eachNodeRules() node {
	none, empty := node{"type": "null"}, node{"const": ""}
	return node{
		"mode": node{"const": rc.EachNode}, "replicas": none,
		"replica_groups": node{"maxItems": 0}, "max_per_node": node{"const": 0},
		"spread": empty, "affinity": node{"maxItems": 0}, "placing": empty, "max_surge": none,
		"strategy":  node{"enum": []string{string(rc.Dynamic), ""}},
		"node_loss": node{"properties": node{"action": empty, "after": none, "unmanaged_after": none}},
	}
}

func spreadRule() node {
	label := node{"type": "string"}
	maps.Copy(label, labelKeyRule())
	text, _ := label["pattern"].(string)
	return node{"anyOf": []any{
		node{"type": "string", "pattern": "^$|" + text},
		node{"type": "object", "additionalProperties": false, "required": []string{"label"}, "properties": node{
			"label": label, "skew": count(), "when": node{"enum": []string{string(rc.Prefer), string(rc.Require), ""}},
		}},
	}}
}

func serviceRules() map[string]node {
	rules := map[string]node{
		"ServiceSpec.digests": {"enum": []string{string(record.Always), string(record.Missing), string(record.Never)}},
		"PreDeploy.args":      {"maxItems": manifest.MaxArgs},
		"PreDeploy.env":       {"maxProperties": manifest.MaxEnv},
	}
	for name, rule := range controllerRules() { // both have the same rules for the fields that they share
		if at, is := strings.CutPrefix(name, "Spec"); is {
			rules["ServiceSpec"+at] = rule
		}
	}
	rules["ServiceSpec.name"]["maxLength"] = record.MaxNameBytes
	rules["ServiceSpec.labels"] = labelRule(record.ServiceLabel)
	return rules
}

func updateRules() map[string]node {
	return map[string]node{
		"Knobs.strategy": {"enum": rollout.StrategyNames()},
		"Knobs.order":    {"enum": []string{rollout.StartFirst, rollout.StopFirst}},
		"Knobs.on_timeout": {"enum": []string{
			rollout.OnTimeoutRollback,
			rollout.OnTimeoutPause, rollout.OnTimeoutContinue,
		}},
		"Knobs.step":             amount(1),
		"Knobs.min_available":    count(),
		"Knobs.revision_history": {"minimum": 0, "maximum": rollout.MaxRevisionHistory},
		"Canary.pods":            {"minimum": 1, "maximum": rc.MaxReplicas},
		"Hook.url":               {"pattern": "^https?://"},
		"Hook.retries":           {"minimum": 0, "maximum": rollout.MaxGateRetries},
	}
}

func count() node { return node{"minimum": 0, "maximum": rc.MaxReplicas} }

func amount(least int) node {
	share := `^0*(?:100|[0-9]{1,2})%$`
	if least > 0 {
		share = `^0*(?:100|[1-9][0-9]?)%$`
	}
	return node{"anyOf": []any{
		node{"type": "integer", "minimum": least, "maximum": rc.MaxReplicas},
		node{"type": "string", "pattern": share},
	}}
}
