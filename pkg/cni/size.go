package cni

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Limits on the values of a configuration. They bound the work of a call, because plugins process each element of a
// list, and for some lists each pair of elements.
const (
	ListMax = 256      // elements of a list or an object, unless the field has the tag `most`
	TextMax = 4 << 10  // bytes of a string
	rawMax  = 64 << 10 // bytes of a value that is not decoded
)

// CheckSizes returns an error with code 7 for values of a decoded configuration or result that exceed the limits. The
// argument must be a struct whose fields have the tag json, or a pointer to one.
func CheckSizes(wire any) error {
	var problems Problems
	checkSize(reflect.ValueOf(wire), "", ListMax, &problems)
	return problems.Err()
}

func checkSize(v reflect.Value, key string, most int, problems *Problems) {
	refuse := func(shown any, length int, unit string, limit int) {
		problems.Add(Refuse(key, shown, fmt.Sprintf("has %d %s, more than %d", length, unit, limit)))
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			checkSize(v.Elem(), key, most, problems)
		}
	case reflect.Struct:
		checkFields(v, key, problems)
	case reflect.String:
		if text := v.String(); len(text) > TextMax {
			refuse(strings.ToValidUTF8(text[:64], "")+"...", len(text), "bytes", TextMax)
		}
	case reflect.Map:
		if v.Len() > most {
			refuse(nil, v.Len(), "keys", most)
		}
	case reflect.Slice:
		switch isBytes := v.Type().Elem().Kind() == reflect.Uint8; {
		case isBytes && v.Len() > rawMax:
			refuse(nil, v.Len(), "bytes", rawMax)
		case isBytes:
		case v.Len() > most:
			refuse(nil, v.Len(), "elements", most)
		default:
			for i := range v.Len() {
				checkSize(v.Index(i), fmt.Sprintf("%s[%d]", key, i), most, problems)
			}
		}
	}
}

func checkFields(v reflect.Value, key string, problems *Problems) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			checkSize(v.Field(i), key, ListMax, problems)
		case name != "" && name != "-":
			most, err := strconv.Atoi(f.Tag.Get("most"))
			if err != nil {
				most = ListMax
			}
			checkSize(v.Field(i), KeyIn(key, name), most, problems)
		}
	}
}
