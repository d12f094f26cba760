//! Rules about programs that run downloaded or decoded code.

use super::{Found, Rule};
use crate::call::Call;
use crate::text::Text;
use crate::wrappers::{SHELLS, runs_its_input};

const DOWNLOADERS: &[&str] = &[
    "aria2c", "axel", "curl", "fetch", "http", "https", "httpie", "lynx", "nc", "ncat", "netcat", "wget",
    "xh",
];

/// Whether a command downloads.
pub(crate) fn is_downloader(call: &Call<'_>) -> bool {
    DOWNLOADERS.contains(&call.program)
}

/// The files to which a command downloads.
pub(crate) fn downloaded(call: &Call<'_>) -> Vec<String> {
    if call.program == "tee" && call.source.is_download {
        return call.operands().map(|file| call.place(file).as_str().to_owned()).collect();
    }
    if !is_downloader(call) {
        return Vec::new();
    }
    let words = call.arguments();
    let flag = |names: &[&str]| {
        let index = words.iter().position(|word| names.contains(&word.value.as_str()))?;
        words.get(index + 1).cloned()
    };
    let output = match call.program {
        "wget" => flag(&["-O", "--output-document"]),
        _ => flag(&["-o", "--output"]),
    };
    let output = output.or_else(|| words.iter().find_map(|word| word.after("--output")));
    let named: Vec<Text> = match output {
        Some(output) => vec![output],
        // The name of the downloaded file is the last part of the URL.
        None => {
            let address = call.operands().last();
            let name = address.and_then(|address| address.value.rsplit('/').next());
            let directory =
                flag(&["-P", "--directory-prefix", "--output-dir"]).map(|directory| directory.value);
            let path =
                name.map(|name| directory.map_or(name.to_owned(), |directory| format!("{directory}/{name}")));
            path.as_deref().map(Text::known).into_iter().collect()
        }
    };
    named.iter().map(|file| call.place(file).as_str().to_owned()).collect()
}

pub(super) fn check(call: &Call<'_>) -> Vec<Found> {
    let runs_input = runs_its_input(call)
        || matches!(call.program, "." | "source" | "xargs" | "parallel" | "eval") && runs_shell(call);
    if runs_input && call.source.is_download {
        return vec![(Rule::DownloadToShell, "runs what it downloads".to_owned())];
    }
    if runs_input && call.source.is_hidden {
        return vec![(Rule::HiddenCode, "runs text that is decoded on the command line".to_owned())];
    }
    let is_downloaded = |text: &Text| call.scope.downloads.contains(call.place(text).as_str());
    let is_runner = SHELLS.contains(&call.program)
        || matches!(call.program, "." | "source" | "perl" | "ruby" | "node" | "php")
        || call.program.starts_with("python");
    let runs_file = is_downloaded(&call.argv[0]) && call.argv[0].value.contains('/')
        || is_runner && call.operands().next().is_some_and(is_downloaded);
    if runs_file {
        return vec![(Rule::DownloadToShell, "runs a file that the same line downloads".to_owned())];
    }
    Vec::new()
}

/// Whether `xargs` passes its input to a shell, or `source` runs its input.
fn runs_shell(call: &Call<'_>) -> bool {
    match call.program {
        "." | "source" => call.operands().next().is_some_and(|file| crate::wrappers::is_input(&file.value)),
        "xargs" | "parallel" => call.arguments().iter().any(|word| SHELLS.contains(&word.program().as_str())),
        _ => false,
    }
}
