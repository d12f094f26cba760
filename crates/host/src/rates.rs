//! Loads `$BOTTLE_HOME/rates.yml`: the prices of models. `bottle` uses these prices to show the cost of tokens.
//!
//! ```text
//! currency: USD                 a word that is shown with amounts
//! per: 1000000                  the number of tokens that a price is for; this is the default
//! models:
//!   claude-sonnet-4-5: {input: 3, output: 15, cache_read: 0.3, cache_write: 3.75}
//!   gpt-5*: 2                   one price for all tokens of models whose names begin so
//! ```
//! The costs are only shown to the user. Budgets count tokens, and do not use this file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;

use bottle_text::yaml;
use serde::Deserialize;

use super::{Host, plain_file};

/// The name of the file in `$BOTTLE_HOME`.
const FILE: &str = "rates.yml";

/// The size limit of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The number of tokens that a price is for, if the file does not set `per`.
const PER: f64 = 1_000_000.0;

/// The longest name of a currency, in characters.
const MAX_CURRENCY: usize = 8;

/// Prices of models.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// The name of the currency, as shown to the user.
    pub currency: String,
    per: f64,
    models: Vec<(Pattern, Price)>,
}

/// A model's name, or a prefix of model names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

/// The prices of the kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Price {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

/// Numbers of tokens by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Tokens of requests that were neither read from the cache nor written to the cache.
    pub input: u64,
    /// Tokens of responses.
    pub output: u64,
    /// Tokens read from the cache.
    pub cache_read: u64,
    /// Tokens written to the cache.
    pub cache_write: u64,
}

/// The cost of some tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// The amount, in the currency of the rates.
    pub amount: f64,
    /// Whether some of the tokens have no price. The real cost is then higher.
    pub is_partial: bool,
}

impl Cost {
    /// Adds another cost.
    pub fn add(&mut self, other: Self) {
        self.amount += other.amount;
        self.is_partial |= other.is_partial;
    }
}

impl fmt::Display for Cost {
    /// Formats the amount with two decimals. A final `+` marks a partial cost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}{}", self.amount, if self.is_partial { "+" } else { "" })
    }
}

/// Why the rates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {why}", path.display())]
pub struct RatesError {
    /// The path of the file.
    pub path: PathBuf,
    /// The problem, with its position.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    currency: String,
    per: Option<u32>,
    models: BTreeMap<String, WrittenPrice>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a price must be a number, or a map with `input` and `output`")]
enum WrittenPrice {
    One(f64),
    Kinds(WrittenKinds),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKinds {
    input: f64,
    output: f64,
    #[serde(default)]
    cache_read: Option<f64>,
    #[serde(default)]
    cache_write: Option<f64>,
}

impl Rates {
    /// Loads the rates. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Returns [`RatesError`] if the file cannot be read or is not valid.
    pub fn load(host: &Host) -> Result<Option<Self>, RatesError> {
        let path = host.home.join(FILE);
        match read(&path) {
            Ok(text) => Self::parse(&text).map(Some).map_err(|why| RatesError { path, why }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RatesError { path, why: error.to_string() }),
        }
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// Returns a sentence fragment with the problem.
    fn parse(text: &str) -> Result<Self, String> {
        let Written { currency, per, models } = yaml::from_str(text).map_err(|error| error.to_string())?;
        let is_word = currency.chars().all(|letter| !letter.is_control() && !letter.is_whitespace());
        if currency.is_empty() || currency.chars().count() > MAX_CURRENCY || !is_word {
            return Err(format!("`currency` must be a word of at most {MAX_CURRENCY} characters"));
        }
        if per == Some(0) {
            return Err("`per` must be at least 1".to_owned());
        }
        let mut priced = Vec::new();
        for (name, price) in models {
            let price = Price::from(price);
            let all = [price.input, price.output, price.cache_read, price.cache_write];
            if all.iter().any(|price| !price.is_finite() || *price < 0.0) {
                return Err(format!("`models.{}` must have prices of at least 0", name.escape_debug()));
            }
            priced.push((Pattern::new(&name), price));
        }
        // The most specific pattern comes first: an exact name before a prefix, and a longer prefix before a shorter
        // one.
        priced.sort_by_key(|(pattern, _)| (pattern.is_prefix, std::cmp::Reverse(pattern.text.len())));
        Ok(Self { currency, per: per.map_or(PER, f64::from), models: priced })
    }

    /// Returns the cost of tokens of this model. If the model has no price, the amount is zero, and the cost of any
    /// token is partial.
    #[must_use]
    pub fn cost(&self, model: &str, tokens: &Kinds) -> Cost {
        let Some((_, price)) = self.models.iter().find(|(pattern, _)| pattern.matches(model)) else {
            let used = [tokens.input, tokens.output, tokens.cache_read, tokens.cache_write];
            return Cost { amount: 0.0, is_partial: used.iter().any(|count| *count > 0) };
        };
        let parts = [
            (tokens.input, price.input),
            (tokens.output, price.output),
            (tokens.cache_read, price.cache_read),
            (tokens.cache_write, price.cache_write),
        ];
        // The rounding error is far smaller than the last digit that is shown.
        #[allow(clippy::cast_precision_loss)]
        let amount = parts.iter().map(|(count, price)| *count as f64 * price / self.per).sum();
        Cost { amount, is_partial: false }
    }
}

impl From<WrittenPrice> for Price {
    fn from(written: WrittenPrice) -> Self {
        match written {
            WrittenPrice::One(price) => {
                Self { input: price, output: price, cache_read: price, cache_write: price }
            }
            // Cache tokens without their own price cost as much as input tokens.
            WrittenPrice::Kinds(WrittenKinds { input, output, cache_read, cache_write }) => Self {
                input,
                output,
                cache_read: cache_read.unwrap_or(input),
                cache_write: cache_write.unwrap_or(input),
            },
        }
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self { text: prefix.to_owned(), is_prefix: true },
            None => Self { text: text.to_owned(), is_prefix: false },
        }
    }

    fn matches(&self, model: &str) -> bool {
        if self.is_prefix { model.starts_with(&self.text) } else { model == self.text }
    }
}

fn read(path: &std::path::Path) -> io::Result<String> {
    let mut text = String::new();
    let file = plain_file::open(path)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is too long"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "currency: EUR\nmodels:\n  claude-sonnet-4-5: {input: 3, output: 15, cache_read: 0.3}\n  \
                        claude-*: {input: 10, output: 10}\n  claude-haiku*: 1\n";

    #[test]
    fn the_most_specific_price_applies() {
        let rates = Rates::parse(TEXT).expect("rates");
        let tokens = Kinds { input: 1_000_000, output: 200_000, cache_read: 10_000_000, cache_write: 0 };
        for (model, amount, is_partial) in [
            ("claude-sonnet-4-5", 9.0, false),
            ("claude-haiku-4", 11.2, false),
            ("claude-opus", 112.0, false),
            ("gpt", 0.0, true),
        ] {
            let cost = rates.cost(model, &tokens);
            assert!((cost.amount - amount).abs() < 1e-9, "{model}: {cost:?}");
            assert_eq!(cost.is_partial, is_partial, "{model}");
        }
        assert_eq!(rates.cost("gpt", &Kinds::default()), Cost::default(), "nothing costs nothing");
        assert_eq!(Cost { amount: 1.5, is_partial: true }.to_string(), "1.50+");
        let per = Rates::parse("currency: $\nper: 1000\nmodels: {m: 2}\n").expect("rates");
        assert!((per.cost("m", &Kinds { input: 500, ..Kinds::default() }).amount - 1.0).abs() < 1e-9);
    }

    #[test]
    fn refuses_bad_files() {
        for (text, problem) in [
            ("currency: ''\nmodels: {}\n", "currency"),
            ("currency: US Dollars\nmodels: {}\n", "currency"),
            ("currency: USD\nper: 0\nmodels: {}\n", "per"),
            ("currency: USD\nmodels: {m: -1}\n", "models.m"),
            ("currency: USD\nmodels: {m: {input: .nan, output: 1}}\n", ".nan"),
            ("currency: USD\nmodels: {m: {input: 1}}\n", ""),
            ("currency: USD\nmodels: {m: {input: 1, output: 1, thinking: 1}}\n", ""),
            ("currency: USD\n", "models"),
            ("currency: USD\nmodels: {}\nrates: {}\n", "rates"),
        ] {
            let why = Rates::parse(text).expect_err(text);
            assert!(why.contains(problem), "{text}: {why}");
        }
    }
}
