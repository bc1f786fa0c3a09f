package field

import (
	"maps"
	"reflect"
	"time"
)

// Copy returns a value that shares nothing with v that could change. v is a record: of pointers, slices, maps to plain values, and plain values.
func Copy[T any](v T) T {
	unshare(reflect.ValueOf(&v).Elem())
	return v
}

var timeType = reflect.TypeFor[time.Time]()

// unshare gives a value that was copied as it is its own of everything that it refers to.
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
				return // bytes, numbers and texts were copied as they are
			}
			for i := range own.Len() {
				unshare(own.Index(i))
			}
		}
	case reflect.Map:
		if texts, ok := v.Addr().Interface().(*map[string]string); ok {
			*texts = maps.Clone(*texts) // most of all maps, without reflection
		} else if !v.IsNil() {
			own := reflect.MakeMapWithSize(v.Type(), v.Len())
			for it := v.MapRange(); it.Next(); {
				own.SetMapIndex(it.Key(), it.Value())
			}
			v.Set(own)
		}
	case reflect.Struct:
		if v.Type() != timeType {
			for i := range v.NumField() { //nolint:modernize // Fields describes each of them besides, which takes longer than all of this
				unshare(v.Field(i))
			}
		}
	default: // it was copied as it is
	}
}
