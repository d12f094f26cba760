//! Compares names as people order them: `try-2` comes before `try-10`.

use std::cmp::Ordering;

/// Compares two names. Sequences of digits are compared as numbers, and all other characters by their bytes.
pub fn compare(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), other.as_bytes());
    loop {
        let order = match (left.first(), right.first()) {
            (None, None) => return one.cmp(other),
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (first, second) = (number(&mut left), number(&mut right));
                first.len().cmp(&second.len()).then_with(|| first.cmp(second))
            }
            (first, second) => {
                let order = first.cmp(&second);
                left = left.get(1..).unwrap_or_default();
                right = right.get(1..).unwrap_or_default();
                order
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Removes the digits at the beginning of `text`. Returns these digits without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|byte| **byte == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_compared_by_value() {
        let mut names = ["try-10", "try-2", "a", "try", "try-1", "b9", "b10a", "b10", "b010"];
        names.sort_by(|one, other| compare(one, other));
        assert_eq!(names, ["a", "b9", "b010", "b10", "b10a", "try", "try-1", "try-2", "try-10"]);
    }

    proptest! {
        #[test]
        fn is_a_total_order(names in proptest::collection::vec("[a-b0-2-]{0,6}", 3)) {
            let [a, b, c] = [&names[0], &names[1], &names[2]];
            prop_assert_eq!(compare(a, b), compare(b, a).reverse());
            prop_assert_eq!(compare(a, b) == Ordering::Equal, a == b);
            if compare(a, b).is_le() && compare(b, c).is_le() {
                prop_assert!(compare(a, c).is_le());
            }
        }
    }
}
