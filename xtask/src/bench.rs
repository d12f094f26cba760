//! `cargo xtask bench`: runs the benchmarks that compare two measurements of the same run, and checks that no ratio
//! fell.
//!
//! These benchmarks print lines like `ratio: NAME VALUE`. A higher value is better. A ratio depends less on the machine
//! and its load than a duration. `benches/history.tsv` has the earlier values, with the commit and the machine.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The path of the file with the earlier values. Each line has a date, a commit, a machine, a ratio and a value, with
/// tabs between them.
const HISTORY: &str = "benches/history.tsv";

/// A ratio has fallen if its value is less than this share of the median of its earlier values.
const LEAST: f64 = 0.9;

/// The number of earlier values on the same machine from which the median is computed.
const LAST: usize = 3;

/// The prefix of a line with a ratio.
const MARK: &str = "ratio: ";

/// The benchmarks, with the arguments of `cargo bench`.
const BENCHES: [(&str, &[&str]); 3] = [
    ("scan", &["--package", "bottle-scan", "--bench", "scan"]),
    ("proxy", &["--package", "bottle-egress", "--bench", "proxy", "--", "throughput", "latency"]),
    ("side-by-side", &["--bench", "side-by-side", "--", "sandbox", "start", "drive"]),
];

/// A measured ratio.
#[derive(Debug, Clone, PartialEq)]
struct Ratio {
    name: String,
    value: f64,
}

/// An entry of the history.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    machine: String,
    ratio: Ratio,
}

/// Runs the benchmarks that `arguments` names, or all benchmarks. `--record` adds their ratios to the history.
///
/// # Errors
/// Returns an error if there is no such benchmark, if a benchmark fails, or if a ratio fell twice in a row.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (records, names): (Vec<&str>, Vec<&str>) = arguments.iter().partition(|word| **word == "--record");
    let known = BENCHES.map(|(name, _)| name);
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("there is no benchmark {unknown:?}: use {}", known.join(", "));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")?;
    let history = history(&root.join(HISTORY))?;
    let machine = machine(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let mut all: Vec<Ratio> = Vec::new();
    for (name, arguments) in BENCHES {
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        let mut ratios = measure(root, name, arguments)?;
        if !fallen(&ratios, &history, &machine).is_empty() {
            println!("\nsome ratios of {name} fell; it runs again");
            let again = measure(root, name, arguments)?;
            ratios = best(ratios, &again);
        }
        all.extend(ratios);
    }
    println!("\non {machine}:\n{}", table(&all, &history, &machine));
    if !records.is_empty() {
        record(root, &machine, &all)?;
    }
    let fallen = fallen(&all, &history, &machine);
    ensure!(fallen.is_empty(), "these ratios fell by more than 10 %: {}", fallen.join(", "));
    Ok(())
}

/// Runs a benchmark, prints its output, and returns its ratios.
fn measure(root: &Path, name: &str, arguments: &[&str]) -> Result<Vec<Ratio>> {
    println!("\n== {name}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .current_dir(root)
        .args(["bench", "--locked"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let mut ratios = Vec::new();
    for line in BufReader::new(child.stdout.take().context("the output")?).lines() {
        let line = line?;
        println!("{line}");
        ratios.extend(ratio(&line));
    }
    ensure!(child.wait()?.success(), "the benchmark {name} failed");
    ensure!(!ratios.is_empty(), "the benchmark {name} printed no ratio");
    Ok(ratios)
}

/// Parses a line of a benchmark's output. Returns `None` if the line contains no ratio.
fn ratio(line: &str) -> Option<Ratio> {
    let (name, value) = line.strip_prefix(MARK)?.rsplit_once(' ')?;
    Some(Ratio { name: name.to_owned(), value: value.parse().ok()? })
}

/// Returns each ratio with the higher value of two runs.
fn best(mut ratios: Vec<Ratio>, again: &[Ratio]) -> Vec<Ratio> {
    for ratio in &mut ratios {
        let second = again.iter().find(|second| second.name == ratio.name);
        ratio.value = second.map_or(ratio.value, |second| second.value.max(ratio.value));
    }
    ratios
}

/// Returns the median of the last values of a ratio on this machine. Returns `None` if there are no values.
fn earlier(name: &str, history: &[Entry], machine: &str) -> Option<f64> {
    let same = |entry: &&Entry| entry.machine == machine && entry.ratio.name == name;
    let mut last: Vec<f64> =
        history.iter().filter(same).rev().take(LAST).map(|entry| entry.ratio.value).collect();
    last.sort_by(f64::total_cmp);
    last.get(last.len() / 2).copied()
}

/// Returns the names of the ratios that fell.
fn fallen(ratios: &[Ratio], history: &[Entry], machine: &str) -> Vec<String> {
    let fell =
        |ratio: &&Ratio| earlier(&ratio.name, history, machine).is_some_and(|was| ratio.value < was * LEAST);
    ratios.iter().filter(fell).map(|ratio| ratio.name.clone()).collect()
}

fn table(ratios: &[Ratio], history: &[Entry], machine: &str) -> String {
    let width = ratios.iter().map(|ratio| ratio.name.len()).max().unwrap_or_default();
    let mut table = String::new();
    for Ratio { name, value } in ratios {
        let was = earlier(name, history, machine);
        let was = was.map_or("no earlier value on this machine".to_owned(), |was| format!("was {was:.3}"));
        // Writing to a string does not fail.
        let _ = writeln!(table, "{name:width$}  {value:>9.3}  {was}");
    }
    table
}

fn history(path: &Path) -> Result<Vec<Entry>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("read {}", path.display()))?,
    };
    let entries = text.lines().enumerate().map(|(number, line)| {
        entry(line).with_context(|| format!("{}: line {} has no ratio", path.display(), number + 1))
    });
    entries.collect()
}

fn entry(line: &str) -> Option<Entry> {
    let [_, _, machine, name, value] = line.split('\t').collect::<Vec<_>>()[..] else { return None };
    let ratio = Ratio { name: name.to_owned(), value: value.parse().ok()? };
    Some(Entry { machine: machine.to_owned(), ratio })
}

fn record(root: &Path, machine: &str, ratios: &[Ratio]) -> Result<()> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(root).args(arguments).output().context("start git")?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let commit = git(&["log", "-1", "--format=%cs\t%h"])?;
    let path = root.join(HISTORY);
    let mut text = fs::read_to_string(&path).unwrap_or_default();
    for Ratio { name, value } in ratios {
        let _ = writeln!(text, "{commit}\t{machine}\t{name}\t{value:.3}");
    }
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Describes the machine: the model of its processors, and their number.
fn machine(cpuinfo: &str) -> String {
    let models = || cpuinfo.lines().filter_map(|line| line.strip_prefix("model name"));
    let model = models().next().unwrap_or(": unknown processor").trim_start_matches([' ', '\t', ':']);
    format!("{} × {model}", models().count().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(values: &[f64]) -> Vec<Entry> {
        let entry = |value: &f64| entry(&format!("2026-11-30\tabc\tm\tr\t{value}")).expect("an entry");
        values.iter().map(entry).collect()
    }

    #[test]
    fn reads_ratios_of_the_output_only() {
        let found = ratio("ratio: proxy / mitmproxy, prose 13.90");
        assert_eq!(found, Some(Ratio { name: "proxy / mitmproxy, prose".to_owned(), value: 13.9 }));
        for line in ["a ratio: x 1", "ratio: x", "ratio: x much", ""] {
            assert_eq!(ratio(line), None, "{line}");
        }
    }

    #[test]
    fn a_ratio_falls_against_the_last_three() {
        for (values, now, falls) in [
            (&[][..], 1.0, false),
            (&[10.0], 9.1, false),
            (&[10.0], 8.9, true),
            (&[99.0, 10.0, 10.0, 10.0], 9.1, false),
            (&[10.0, 3.0, 10.0], 8.9, true),
            (&[1.0, 2.0, 20.0, 20.0], 17.9, true),
        ] {
            let ratios = [Ratio { name: "r".to_owned(), value: now }];
            assert_eq!(!fallen(&ratios, &entries(values), "m").is_empty(), falls, "{values:?} {now}");
            assert!(fallen(&ratios, &entries(values), "another machine").is_empty());
        }
    }

    #[test]
    fn a_second_run_counts_if_it_is_better() {
        let ratios =
            |a, b| vec![Ratio { name: "a".to_owned(), value: a }, Ratio { name: "b".to_owned(), value: b }];
        assert_eq!(best(ratios(1.0, 5.0), &ratios(2.0, 4.0)), ratios(2.0, 5.0));
        assert_eq!(best(ratios(1.0, 5.0), &[]), ratios(1.0, 5.0));
    }

    #[test]
    fn the_history_of_the_project_is_readable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("root");
        history(&root.join(HISTORY)).expect("a history");
    }

    #[test]
    fn describes_the_machine() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(machine(cpuinfo), "2 × Some CPU @ 2 GHz");
        assert_eq!(machine(""), "1 × unknown processor");
    }
}
