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

// writeGob writes, and gobReader.read reads, a message of net/rpc: a struct of rpc.go in the format of encoding/gob.
// That package is not imported, since its initialization would take 0.25 ms of each start of each plugin in the one
// program. Its documentation, "Encoding Details", has the rest of the format.
//   - An unsigned integer below 128 is one byte; from there on, the number of its bytes, negated, and these. A signed
//     one is shifted by a bit that says whether the others are inverted.
//   - A string is its length and its bytes; so is a []byte, or what a type's own method encodes.
//   - A slice, an array or a map is its number of elements, and these. A map's are a key and a value each.
//   - A struct is those of its fields that are not zero, and then 0. Before each field stands how far it is from the
//     one before, 1 being the next. A pointer is what it points to.
//   - A message is its length, the ID of a type, and a value. Before it come messages that describe types: the negated
//     ID, and a gobType, which both sides know. So a reader finds fields by name, and skips those that it lacks.
const (
	gobBool = iota + 1
	gobInt
	gobUint
	gobFloat
	gobBytes
	gobString
	gobComplex
	gobInterface

	gobOwn  = 16 // the first ID of gobType and its parts
	gobFree = 64 // the first ID of types that messages describe
)

const (
	gobDepth = 1000 // of values in values, at most
	// At most so many values are kept of a stream: an empty one is a byte, and a hundred in memory. The answer of a
	// DHCP server is less than 64 KiB, of which a route is five bytes, and seven values here.
	gobValues = 1 << 18
)

// gobType describes a type: one field is set. The order of the fields is that of the format.
type gobType struct {
	Array, Slice      *gobList
	Struct            *gobStruct
	Map               *gobMap
	Gob, Binary, Text *struct{ Type gobName } // what GobEncode, MarshalBinary or MarshalText returns
}

type gobName struct {
	Name string
	ID   int
}

type gobList struct {
	Type      gobName
	Elem, Len int // Len: of an array
}

type gobMap struct {
	Type      gobName
	Key, Elem int
}

type gobStruct struct {
	Type   gobName
	Fields []gobName
}

// gobTypes are descriptions by their IDs.
type gobTypes map[int]gobType

// add describes a Go type and those that it consists of, and returns its ID. IDs are counted from first.
func (types gobTypes) add(t reflect.Type, first int) int {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if id := gobBasic(t); id != 0 {
		return id
	}
	name, d := gobName{t.Name(), first + len(types)}, gobType{}
	types[name.ID] = d // reserves the ID before the parts take theirs
	if t.Kind() == reflect.Slice {
		d.Slice = &gobList{Type: name, Elem: types.add(t.Elem(), first)}
	} else {
		d.Struct = &gobStruct{Type: name}
		for f := range t.Fields() {
			d.Struct.Fields = append(d.Struct.Fields, gobName{f.Name, types.add(f.Type, first)})
		}
	}
	types[name.ID] = d
	return name.ID
}

// gobBasic is the ID of a type that needs no description, or 0.
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

// writeGob writes structs, of which all fields are exported.
func writeGob(w io.Writer, values ...any) error {
	var out []byte
	types := gobTypes{}
	for _, v := range values {
		next := gobFree + len(types)
		id := types.add(reflect.TypeOf(v), gobFree)
		for ; next < gobFree+len(types); next++ {
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
		return append(b, 1) // false is zero, and zero fields are not written
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
	in     *bufio.Reader
	rest   *bytes.Buffer // of the message
	types  gobTypes
	depth  int
	values int // that are kept
	err    error
}

func newGobReader(r io.Reader) *gobReader {
	types := gobTypes{}
	types.add(reflect.TypeFor[gobType](), gobOwn)
	return &gobReader{in: bufio.NewReader(io.LimitReader(r, callMax)), types: types}
}

// read reads the next message into a struct, of which all fields are exported and zero.
func (r *gobReader) read(to any) error {
	r.rest = &bytes.Buffer{}
	id := r.typeID()
	v := reflect.ValueOf(to).Elem()
	isKnown := func(f gobName) bool { return v.FieldByName(f.Name).IsValid() }
	if s := r.types[id].Struct; s != nil && len(s.Fields) > 0 && !slices.ContainsFunc(s.Fields, isKnown) {
		r.fail(fmt.Errorf("%q has no field of %s", s.Type.Name, v.Type()))
	}
	r.value(id, v)
	return r.err
}

func (r *gobReader) fail(err error) { r.err = cmp.Or(r.err, err) }

// typeID reads the ID of the next value's type, after the descriptions before it.
func (r *gobReader) typeID() int {
	for r.err == nil {
		if r.rest.Len() == 0 {
			r.message()
		}
		id := int(r.int())
		if id >= 0 {
			return id
		}
		var t gobType
		r.value(gobOwn, reflect.ValueOf(&t).Elem())
		if _, isThere := r.types[-id]; isThere || -id < gobFree || !t.isWhole() {
			r.fail(fmt.Errorf("type %d is described again or in part", -id))
		}
		r.types[-id] = t
		if r.rest.Len() > 0 { // an interface's descriptions are inside the message, with lengths
			r.uint()
		}
	}
	return 0
}

func (r *gobReader) message() {
	n, err := readUint(r.in)
	r.fail(err)
	r.rest = &bytes.Buffer{} // []byte values are parts of the former one
	if _, err := io.CopyN(r.rest, r.in, int64(min(n, callMax))); err != nil {
		r.fail(io.ErrUnexpectedEOF)
	}
}

func (r *gobReader) uint() (n uint64) {
	if r.err == nil {
		n, r.err = readUint(r.rest)
	}
	return n
}

func (r *gobReader) int() int64 {
	n := r.uint()
	return int64(n>>1) ^ -int64(n&1)
}

func (r *gobReader) bytes() []byte {
	n := r.uint()
	if n > uint64(r.rest.Len()) {
		r.fail(io.ErrUnexpectedEOF)
		return nil
	}
	return r.rest.Next(int(n))
}

// value reads a value into v, or skips it where v is not valid.
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
	case r.depth > gobDepth:
		r.fail(fmt.Errorf("more than %d values are in each other", gobDepth))
	case r.values > gobValues:
		r.fail(fmt.Errorf("there are more than %d values", gobValues))
	case v.IsValid() && !t.fits(id, v):
		r.fail(fmt.Errorf("a value of type %d is no %s", id, v.Type()))
	case t.Array != nil:
		r.elements(t.Array.Elem, v)
	case t.Slice != nil:
		r.elements(t.Slice.Elem, v)
	case t.Map != nil:
		for n := r.uint(); n > 0 && r.err == nil; n-- {
			r.value(t.Map.Key, v)
			r.value(t.Map.Elem, v)
		}
	case t.Struct != nil:
		r.fields(t.Struct.Fields, v)
	case t != gobType{}:
		r.bytes()
	default:
		r.basic(id, v)
	}
}

// fits says whether values of the type can be read into v.
func (t gobType) fits(id int, v reflect.Value) bool {
	if basic := gobBasic(v.Type()); basic != 0 {
		return id == basic
	}
	return v.Kind() == reflect.Slice && t.Slice != nil || v.Kind() == reflect.Struct && t.Struct != nil
}

// isWhole says whether one field is set.
func (t gobType) isWhole() bool {
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

func (r *gobReader) fields(rest []gobName, v reflect.Value) {
	for distance := r.uint(); distance > 0; distance = r.uint() {
		if distance > uint64(len(rest)) {
			r.fail(errors.New("a struct has more fields than its type"))
			return
		}
		field := v
		if v.IsValid() {
			field = v.FieldByName(rest[distance-1].Name)
		}
		r.value(rest[distance-1].ID, field)
		rest = rest[distance:]
	}
}

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
		if name := r.bytes(); len(name) > 0 { // else it is nil
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
