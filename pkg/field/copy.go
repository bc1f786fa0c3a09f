package field

import (
	"maps"
	"reflect"
	"time"
)

// Copy returns a deep copy of a record, which must consist of pointers, slices, maps of plain values, and plain values.
func Copy[T any](v T) T {
	unshare(reflect.ValueOf(&v).Elem())
	return v
}

var timeType = reflect.TypeFor[time.Time]()

func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			own := reflect.New(v.Type().Elem())
			own.Elem().Set(v.Elem())
			unshare(own.Elem())
			v.Set(own)
		}
	case reflect.Slice:
		if !v.IsNil() {
			own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(own, v)
			v.Set(own)
			if k := v.Type().Elem().Kind(); k < reflect.Array || k == reflect.String {
				return // bytes, numbers and texts are copied already
			}
			for i := range own.Len() {
				unshare(own.Index(i))
			}
		}
	case reflect.Map:
		if texts, ok := v.Addr().Interface().(*map[string]string); ok {
			*texts = maps.Clone(*texts) // the most frequent kind of map, without reflection
		} else if !v.IsNil() {
			own := reflect.MakeMapWithSize(v.Type(), v.Len())
			for it := v.MapRange(); it.Next(); {
				own.SetMapIndex(it.Key(), it.Value())
			}
			v.Set(own)
		}
	case reflect.Struct:
		if v.Type() != timeType {
			for i := range v.NumField() { //nolint:modernize // v.Fields also describes each field, which takes longer
				unshare(v.Field(i))
			}
		}
	default: // copied already
	}
}
