//! Formats errors together with their causes.

use std::error::Error;

/// Returns the messages of `error` and its causes, outermost first. Some libraries repeat a cause in the message of
/// their error; a cause whose message is contained in the message before it is omitted.
pub fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    for cause in anyhow::Chain::new(error).skip(1).map(ToString::to_string) {
        let above = chain.last().and_then(|above| above.strip_suffix(&cause));
        if above.is_none_or(|head| !head.is_empty() && !head.ends_with(": ")) {
            chain.push(cause);
        }
    }
    chain
}

/// Returns `error` and its causes on one line, for example `cannot read X: permission denied`.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    chain(error).join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot {0}")]
    struct Failed(&'static str, #[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("{step}: {source}")]
    struct Repeating {
        step: &'static str,
        source: Failed,
    }

    #[test]
    fn lists_each_cause_once() {
        let refused = || Failed("read X", std::io::Error::other("refused"));
        assert_eq!(chain(&refused()), ["cannot read X", "refused"]);
        assert_eq!(one_line(&refused()), "cannot read X: refused");
        let alike = Failed("read /empty", std::io::Error::other("empty"));
        assert_eq!(one_line(&alike), "cannot read /empty: empty");
        let repeating = Repeating { step: "start", source: refused() };
        assert_eq!(chain(&repeating), ["start: cannot read X", "refused"]);
    }
}
