package dhcp

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"reflect"
	"slices"
)

// This file implements the part of encoding/gob that net/rpc needs: writeGob writes a struct of rpc.go, and
// gobReader.read reads one. The reference plugin determines the wire format. The package comment gives the reason why
// encoding/gob is not imported.
//
// The format, which the documentation of encoding/gob describes under "Encoding Details":
//
//   - Unsigned integer: a value below 128 is one byte. A larger one is the negated number of its bytes, then the bytes,
//     most significant first. For example, 300 is FE 01 2C.
//   - Signed integer: an unsigned one whose lowest bit is 1 if the other bits are inverted. For example, -3 is 5.
//   - String, []byte, or the output of a type's own encoding method: its length and its bytes.
//   - Slice, array or map: the number of elements, then the elements. An element of a map is a key and a value.
//   - Struct: its fields that are not zero, then 0. Each field is preceded by its distance from the previous field that
//     was sent; 1 means the next field. A pointer is encoded as the value that it points to.
//   - Message: its length, the ID of a type, and a value. Each type is first described by a message with the negated
//     ID and a gobType, which both sides know. A reader therefore finds fields by name and skips unknown ones.
//
// The IDs of types that need no description:
const (
	gobBool = iota + 1
	gobInt
	gobUint
	gobFloat
	gobBytes
	gobString
	gobComplex
	gobInterface

	gobTypeIDs = 16 // first ID of gobType and the types in it
	firstGobID = 64 // first ID of types that messages describe
)

const (
	maxCall     = 16 << 20 // bytes read from one stream
	maxGobDepth = 1000     // nested values
	// maxGobValues limits the values that are decoded from a stream, because an empty value takes one byte in the
	// stream and a hundred in memory. The largest result comes from a DHCP answer of 64 KiB with routes of five bytes,
	// and has seven values for each route.
	maxGobValues = 1 << 18
)

// gobType describes a type. Exactly one field is set. The format determines the order of the fields.
type gobType struct {
	Array, Slice      *gobList
	Struct            *gobStruct
	Map               *gobMap
	Gob, Binary, Text *struct{ Type gobName } // what GobEncode, MarshalBinary or MarshalText returns
}

// gobName is the name and ID of a type, or the name of a field and the ID of its type.
type gobName struct {
	Name string
	ID   int
}

// gobList describes a slice or an array. Len is the length of an array.
type gobList struct {
	Type      gobName
	Elem, Len int
}

type gobMap struct {
	Type      gobName
	Key, Elem int
}

type gobStruct struct {
	Type   gobName
	Fields []gobName
}

// gobTypes contains type descriptions by ID.
type gobTypes map[int]gobType

// describe adds the descriptions of a Go type and of the types in it, and returns its ID. IDs are counted from first.
func (types gobTypes) describe(t reflect.Type, first int) int {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if id := gobBasic(t); id != 0 {
		return id
	}
	name, d := gobName{t.Name(), first + len(types)}, gobType{}
	types[name.ID] = d // reserve the ID before the types in t get theirs
	if t.Kind() == reflect.Slice {
		d.Slice = &gobList{Type: name, Elem: types.describe(t.Elem(), first)}
	} else {
		d.Struct = &gobStruct{Type: name}
		for f := range t.Fields() {
			d.Struct.Fields = append(d.Struct.Fields, gobName{f.Name, types.describe(f.Type, first)})
		}
	}
	types[name.ID] = d
	return name.ID
}

// gobBasic returns the ID of a type that needs no description, or 0 for another type.
func gobBasic(t reflect.Type) int {
	switch t.Kind() {
	case reflect.Bool:
		return gobBool
	case reflect.Int:
		return gobInt
	case reflect.Uint, reflect.Uint64:
		return gobUint
	case reflect.String:
		return gobString
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return gobBytes
		}
	}
	return 0
}

// writeGob writes structs. All their fields must be exported.
func writeGob(w io.Writer, values ...any) error {
	var out []byte
	types := gobTypes{}
	for _, v := range values {
		next := firstGobID + len(types)
		id := types.describe(reflect.TypeOf(v), firstGobID)
		for ; next < firstGobID+len(types); next++ {
			out = appendMessage(out, -next, types[next])
		}
		out = appendMessage(out, id, v)
	}
	_, err := w.Write(out)
	return err
}

func appendMessage(b []byte, id int, v any) []byte {
	message := appendValue(appendInt(nil, int64(id)), reflect.ValueOf(v))
	return append(appendUint(b, uint64(len(message))), message...)
}

func appendValue(b []byte, v reflect.Value) []byte {
	v = reflect.Indirect(v)
	switch gobBasic(v.Type()) {
	case gobBool:
		return append(b, 1) // true: zero fields are not written
	case gobInt:
		return appendInt(b, v.Int())
	case gobUint:
		return appendUint(b, v.Uint())
	case gobBytes:
		return append(appendUint(b, uint64(v.Len())), v.Bytes()...)
	case gobString:
		return append(appendUint(b, uint64(v.Len())), v.String()...)
	}
	if v.Kind() == reflect.Slice {
		b = appendUint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = appendValue(b, v.Index(i))
		}
		return b
	}
	last := -1
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			b = appendValue(appendUint(b, uint64(i-last)), v.Field(i))
			last = i
		}
	}
	return append(b, 0)
}

func appendInt(b []byte, n int64) []byte { return appendUint(b, uint64(n<<1^n>>63)) }

func appendUint(b []byte, n uint64) []byte {
	if n < 128 {
		return append(b, byte(n))
	}
	size := (bits.Len64(n) + 7) / 8
	return append(append(b, byte(-size)), binary.BigEndian.AppendUint64(nil, n)[8-size:]...)
}

func readUint(in io.ByteReader) (n uint64, err error) {
	first, err := in.ReadByte()
	if err != nil || first < 128 {
		return uint64(first), err
	}
	size := 256 - int(first)
	if size > 8 {
		return 0, errors.New("an integer has more than 64 bits")
	}
	for range size {
		b, err := in.ReadByte()
		if err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		n = n<<8 | uint64(b)
	}
	return n, nil
}

// gobReader reads a stream. After an error it reads zeros.
type gobReader struct {
	in      *bufio.Reader
	message *bytes.Buffer // unread part of the current message
	types   gobTypes
	depth   int // nesting of the current value
	values  int // decoded values
	err     error
}

func newGobReader(r io.Reader) *gobReader {
	types := gobTypes{}
	types.describe(reflect.TypeFor[gobType](), gobTypeIDs)
	return &gobReader{in: bufio.NewReader(io.LimitReader(r, maxCall)), types: types}
}

// read reads the next value into a struct. All fields of the struct must be exported and zero.
func (r *gobReader) read(target any) error {
	r.message = &bytes.Buffer{}
	id := r.typeID()
	v := reflect.ValueOf(target).Elem()
	// Like encoding/gob, refuse a struct that has no field in common with the target.
	isKnown := func(f gobName) bool { return v.FieldByName(f.Name).IsValid() }
	if s := r.types[id].Struct; s != nil && len(s.Fields) > 0 && !slices.ContainsFunc(s.Fields, isKnown) {
		r.fail(fmt.Errorf("%q has no field of %s", s.Type.Name, v.Type()))
	}
	r.value(id, v)
	return r.err
}

// fail sets the reader's error unless it is set.
func (r *gobReader) fail(err error) { r.err = cmp.Or(r.err, err) }

// typeID reads the type descriptions before the next value, and returns the ID of the value's type.
func (r *gobReader) typeID() int {
	for r.err == nil {
		if r.message.Len() == 0 {
			r.nextMessage()
		}
		id := int(r.int())
		if id >= 0 {
			return id
		}
		var t gobType
		r.value(gobTypeIDs, reflect.ValueOf(&t).Elem())
		if _, exists := r.types[-id]; exists || -id < firstGobID || !t.isValid() {
			r.fail(fmt.Errorf("type %d is described twice or incompletely", -id))
		}
		r.types[-id] = t
		if r.message.Len() > 0 { // in an interface value, the next message follows in the same buffer: skip its length
			r.uint()
		}
	}
	return 0
}

func (r *gobReader) nextMessage() {
	n, err := readUint(r.in)
	r.fail(err)
	r.message = &bytes.Buffer{} // not reused, because []byte values refer to the former buffer
	if _, err := io.CopyN(r.message, r.in, int64(min(n, maxCall))); err != nil {
		r.fail(io.ErrUnexpectedEOF)
	}
}

func (r *gobReader) uint() (n uint64) {
	if r.err == nil {
		n, r.err = readUint(r.message)
	}
	return n
}

func (r *gobReader) int() int64 {
	n := r.uint()
	return int64(n>>1) ^ -int64(n&1)
}

func (r *gobReader) bytes() []byte {
	n := r.uint()
	if n > uint64(r.message.Len()) {
		r.fail(io.ErrUnexpectedEOF)
		return nil
	}
	return r.message.Next(int(n))
}

// value reads a value into v. If v is not valid, it skips the value.
func (r *gobReader) value(id int, v reflect.Value) {
	r.depth++
	defer func() { r.depth-- }()
	if v.IsValid() {
		r.values++
	}
	if v.IsValid() && v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch t := r.types[id]; {
	case r.err != nil:
	case r.depth > maxGobDepth:
		r.fail(fmt.Errorf("values are nested more than %d deep", maxGobDepth))
	case r.values > maxGobValues:
		r.fail(fmt.Errorf("more than %d values", maxGobValues))
	case v.IsValid() && !t.matches(id, v):
		r.fail(fmt.Errorf("a value of type %d is not a %s", id, v.Type()))
	case t.Array != nil:
		r.elements(t.Array.Elem, v)
	case t.Slice != nil:
		r.elements(t.Slice.Elem, v)
	case t.Map != nil: // only skipped: v is not valid, because no struct of rpc.go has a map
		for n := r.uint(); n > 0 && r.err == nil; n-- {
			r.value(t.Map.Key, v)
			r.value(t.Map.Elem, v)
		}
	case t.Struct != nil:
		r.fields(t.Struct.Fields, v)
	case t != gobType{}: // Gob, Binary or Text, which are also only skipped
		r.bytes()
	default:
		r.basic(id, v)
	}
}

// matches reports whether values of the type with this ID can be read into v.
func (t gobType) matches(id int, v reflect.Value) bool {
	if basic := gobBasic(v.Type()); basic != 0 {
		return id == basic
	}
	return v.Kind() == reflect.Slice && t.Slice != nil || v.Kind() == reflect.Struct && t.Struct != nil
}

// isValid reports whether exactly one field is set.
func (t gobType) isValid() bool {
	set := 0
	for _, field := range reflect.ValueOf(t).Fields() {
		if !field.IsNil() {
			set++
		}
	}
	return set == 1
}

func (r *gobReader) elements(id int, v reflect.Value) {
	n := r.uint()
	for i := 0; uint64(i) < n && r.err == nil; i++ {
		element := v
		if v.IsValid() {
			v.Grow(1)
			v.SetLen(i + 1)
			element = v.Index(i)
		}
		r.value(id, element)
	}
}

func (r *gobReader) fields(fields []gobName, v reflect.Value) {
	for distance := r.uint(); distance > 0; distance = r.uint() {
		if distance > uint64(len(fields)) {
			r.fail(errors.New("a struct has more fields than its type"))
			return
		}
		field := v
		if v.IsValid() {
			field = v.FieldByName(fields[distance-1].Name)
		}
		r.value(fields[distance-1].ID, field)
		fields = fields[distance:]
	}
}

// basic reads a value of a type that needs no description.
func (r *gobReader) basic(id int, v reflect.Value) {
	var x any
	switch id {
	case gobBool:
		x = r.uint() != 0
	case gobInt:
		x = r.int()
	case gobUint, gobFloat:
		x = r.uint()
	case gobComplex:
		r.uint()
		r.uint()
	case gobBytes, gobString:
		x = r.bytes()
	case gobInterface:
		if name := r.bytes(); len(name) > 0 { // an empty name means nil
			r.typeID()
			r.bytes()
		}
	default:
		r.fail(fmt.Errorf("type %d is not described", id))
	}
	if v.IsValid() {
		v.Set(reflect.ValueOf(x).Convert(v.Type()))
	}
}
