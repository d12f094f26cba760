//! The table of the attempts of `bottle probe`.

use bottle_protocol::session::guest::{Attempt, Reach};

use crate::console::layout::Table;
use crate::console::output::inert;
use crate::console::style::Styles;

/// Renders the table and a one-line verdict. Attempts with the same target and result share a row.
pub(crate) fn table(attempts: &[Attempt], styles: Styles) -> String {
    let same = |one: &Attempt, other: &Attempt| {
        (&one.target, one.result, &one.seen) == (&other.target, other.result, &other.seen)
    };
    let mut groups: Vec<Vec<&Attempt>> = Vec::new();
    for attempt in attempts {
        match groups.iter_mut().find(|group| same(group[0], attempt)) {
            Some(group) => group.push(attempt),
            None => groups.push(vec![attempt]),
        }
    }
    let rows: Vec<Vec<String>> = groups
        .iter()
        .map(|group| {
            let Attempt { target, via, result, seen, .. } = group[0];
            // The number of ways to the target comes first, because a narrow terminal truncates the end of the cell.
            let via = match group.len() {
                1 => inert(via),
                ways => format!("{ways} ways, as {}", inert(via)),
            };
            let result = match result {
                Reach::Blocked => styles.green("blocked"),
                Reach::Reached => styles.red("REACHED"),
                Reach::Unknown => styles.yellow("unknown"),
            };
            vec![inert(target), via, result, inert(seen)]
        })
        .collect();
    let heading = ["TARGET", "VIA", "RESULT", "OBSERVED"];
    let table = Table { heading: &heading, name: 0, rows: &rows };
    format!("{}\n\n{}", table.aligned(styles), verdict(attempts, styles))
}

fn verdict(attempts: &[Attempt], styles: Styles) -> String {
    let count = |reach| attempts.iter().filter(|attempt| attempt.result == reach).count();
    let (reached, unknown) = (count(Reach::Reached), count(Reach::Unknown));
    match (attempts.len(), reached, unknown) {
        (0, ..) => styles.red("Nothing was tried, so the isolation is unknown."),
        (all, 0, 0) => styles.green(&format!(
            "All {all} attempts were blocked: traffic leaves this bottle through its egress proxy alone."
        )),
        (all, 0, unknown) => {
            styles.yellow(&format!("{unknown} of {all} attempts were not shown to be blocked."))
        }
        (all, reached, _) => styles
            .red(&format!("{reached} of {all} attempts REACHED their target: this bottle is not isolated.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(target: &str, result: Reach) -> Attempt {
        Attempt { target: target.into(), via: "tcp".into(), to: None, result, seen: "x\x1b[2J".into() }
    }

    #[test]
    fn the_table_ends_with_a_verdict() {
        let blocked = attempt("outside", Reach::Blocked);
        let reached = attempt("outside", Reach::Reached);
        let all =
            [blocked.clone(), attempt("host", Reach::Reached), blocked.clone(), blocked.clone(), reached];
        assert_eq!(
            table(&all, Styles::PLAIN),
            "TARGET   VIA             RESULT   OBSERVED\n\
             outside  3 ways, as tcp  blocked  x\\u{1b}[2J\n\
             host     tcp             REACHED  x\\u{1b}[2J\n\
             outside  tcp             REACHED  x\\u{1b}[2J\n\n\
             2 of 5 attempts REACHED their target: this bottle is not isolated."
        );
        assert!(table(&[blocked], Styles::PLAIN).ends_with("through its egress proxy alone."));
        assert!(verdict(&[attempt("x", Reach::Unknown)], Styles::PLAIN).contains("were not shown"));
        assert!(verdict(&[], Styles::PLAIN).contains("is unknown"));
    }
}
