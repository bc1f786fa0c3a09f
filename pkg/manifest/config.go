package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// FileKey is the only key of an object that stands for the content of a file of the node, so that what the file holds
// never enters Consul: {"$file": "/etc/web/password"}.
const FileKey = "$file"

// Limits on the configuration tree.
const (
	MaxConfigDepth = 32     // maps and lists within each other, config itself included
	MaxConfigBytes = 32_768 // as canonical JSON
)

// Config is any tree of JSON. Numbers in it are json.Number, so that each stays as it was written: a float64 would make
// 1 of 1.0 and lose digits of large ones, and with them the digest.
type Config map[string]any

// UnmarshalJSON reads a map; anything else, null included, is a *field.Error.
func (c *Config) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return err
	}
	tree, ok := value.(map[string]any)
	if !ok {
		return &field.Error{Value: field.KindOf(value), Allowed: "a map"}
	}
	*c = tree
	return nil
}

const fileAllowed = `only the key $file, with the absolute path of a file on the node: {$file: /etc/web/password}`

func (c Config) validate() field.Errors {
	var errs field.Errors
	if len(c) == 0 {
		return nil
	}
	if _, found := c[FileKey]; found {
		errs.Add(FileKey, field.Text("$file in place of the whole configuration"), "$file below a key of config")
		return errs
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		checkTree(&errs, key, c[key], 2)
	}
	if data, err := json.Marshal(c); err != nil {
		errs.Add("", field.Text("a value that JSON cannot hold"), "maps, lists, strings, numbers, true, false and null")
	} else if len(data) > MaxConfigBytes {
		errs.Add("", field.Text(fmt.Sprintf("%d bytes of canonical JSON", len(data))), fmt.Sprintf("at most %d bytes", MaxConfigBytes))
	}
	return errs
}

// checkTree looks for what is too deep and for malformed references to files. A tree that is too deep is left there.
func checkTree(errs *field.Errors, at string, value any, depth int) {
	object, isMap := value.(map[string]any)
	list, isList := value.([]any)
	if (isMap || isList) && depth > MaxConfigDepth {
		errs.Add(at, field.Text(fmt.Sprintf("level %d of nesting", depth)), fmt.Sprintf("at most %d levels", MaxConfigDepth))
		return
	}
	if file, found := object[FileKey]; found {
		if name, ok := file.(string); !ok || !AbsolutePath.ok(name) {
			errs.Add(field.Join(at, FileKey), file, fileAllowed)
		} else if len(object) > 1 {
			errs.Add(at, field.Text("$file together with other keys"), fileAllowed)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		checkTree(errs, field.Join(at, key), object[key], depth+1)
	}
	for i, item := range list {
		checkTree(errs, fmt.Sprintf("%s[%d]", at, i), item, depth+1)
	}
}
