//! Creates the bottle's slug from the label, or from the agent's name and five random characters.

use bottle_policy::names::{BadName, Name, SLUG_MAX, Slug};

/// The lower-case base32 alphabet of RFC 4648, which omits digits that look like letters.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The number of random characters in a slug without a label. Five characters give 33 million combinations for
/// each agent.
const RANDOM: usize = 5;

/// Creates the slug for a launch. `random` fills a buffer with random bytes, and is not called if there is a label.
///
/// # Errors
/// Returns [`BadName`] if the label contains no valid character.
pub fn slug(label: Option<&str>, agent: &Name, random: &mut dyn FnMut(&mut [u8])) -> Result<Slug, BadName> {
    if let Some(label) = label {
        return Slug::from_label(label);
    }
    let mut bytes = [0; RANDOM];
    random(&mut bytes);
    let suffix: String = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    let agent: String = agent.as_str().chars().take(SLUG_MAX - RANDOM - 1).collect();
    Slug::from_label(&format!("{agent}-{suffix}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_label_becomes_the_slug_without_random_characters() {
        let agent = "claude".parse().expect("name");
        let mut draw = |_: &mut [u8]| panic!("nothing random about a label");
        assert_eq!(slug(Some("Fix It"), &agent, &mut draw).expect("slug").as_str(), "fix-it");
    }

    proptest! {
        #[test]
        fn every_agent_name_makes_a_slug(name in "[a-z][a-z0-9-]{0,63}", bytes in any::<[u8; RANDOM]>()) {
            let agent = name.parse().expect("name");
            let mut draw = |buffer: &mut [u8]| buffer.copy_from_slice(&bytes);
            let slug = slug(None, &agent, &mut draw).expect("slug");
            prop_assert!(slug.as_str().len() <= SLUG_MAX);
        }
    }
}
