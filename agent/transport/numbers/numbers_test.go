// SPDX-License-Identifier: Apache-2.0

package numbers

import "testing"

// Programs compare numbers in the place of rates.
func TestTheLesserOfTwoNumbersIsTheLesserRate(t *testing.T) {
	before := uint16(0)
	for rate := int64(8_000); rate <= 10_000_000_000_000; rate += rate/700 + 1 {
		number := OfRate(rate)
		if number < before {
			t.Fatalf("%d bit/s has the number %d, and less has %d", rate, number, before)
		}
		meant := int64(number&2047) << (number >> 11) * 1000
		if meant > rate || float64(meant) < 0.998*float64(rate)-1000 {
			t.Fatalf("%d bit/s has the number of %d", rate, meant)
		}
		before = number
	}
}

func TestRatesAndNamesHaveTheNumbersOfTheDocumentation(t *testing.T) {
	if got := OfRate(20_000_000); got != 4<<11|1250 {
		t.Errorf("20 Mbit/s has the number %d", got)
	}
	// FNV-1a of "a" is 0xe40c292c.
	if got := OfName("a"); got != 0xe40c^0x292c {
		t.Errorf(`"a" has the number %#x`, got)
	}
}
