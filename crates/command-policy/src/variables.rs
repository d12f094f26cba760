//! Which variables change what programs run or read.

/// Variables that change only the language and the look of what a command prints.
const HARMLESS: &[&str] = &[
    "CI",
    "CLICOLOR",
    "COLUMNS",
    "FORCE_COLOR",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_NUMERIC",
    "LC_TIME",
    "LINES",
    "NO_COLOR",
    "TERM",
    "TZ",
];

/// Variables of well-known programs that change what these programs print.
const PRINTING: &[&str] = &[
    "CARGO_TERM_COLOR",
    "DJANGO_DEBUG",
    "FLASK_DEBUG",
    "FLASK_ENV",
    "NODE_ENV",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "RUST_BACKTRACE",
    "RUST_LOG",
];

/// Whether a variable changes only the look of what a command prints.
pub(crate) fn is_harmless(name: &str) -> bool {
    HARMLESS.contains(&name)
}

/// Variables that tell the shell or each program what to run or to read.
const OBEYED: &[&str] = &[
    "ARGV0",
    "BROWSER",
    "CDPATH",
    "EDITOR",
    "ENV",
    "EXECIGNORE",
    "FCEDIT",
    "FIGNORE",
    "FPATH",
    "GCONV_PATH",
    "GLOBIGNORE",
    "HISTFILE",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "INPUTRC",
    "LOCPATH",
    "MAIL",
    "MAILPATH",
    "MANPAGER",
    "MANPATH",
    "MODULE_PATH",
    "NLSPATH",
    "NULLCMD",
    "OLDPWD",
    "OPTIND",
    "PAGER",
    "PATH",
    "POSIXLY_CORRECT",
    "PROMPT",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "PWD",
    "READNULLCMD",
    "RPROMPT",
    "SHELL",
    "SHELLOPTS",
    "STTY",
    "TAR_OPTIONS",
    "TERMCAP",
    "TERMINFO",
    "TMPDIR",
    "TMPPREFIX",
    "VISUAL",
    "ZDOTDIR",
];
const OBEYED_PREFIXES: &[&str] = &[
    "BASH", "DYLD_", "GIT_", "GREP_", "JQ_", "LD_", "LESS", "NODE_", "PERL", "PYTHON", "RIPGREP_", "RUBY",
    "XDG_", "ZSH",
];
/// Arrays of zsh whose elements define what a name of a command means, or where zsh looks for it. Bash and the POSIX
/// shell give these names no meaning.
const ARRAYS_OF_ZSH: &[&str] = &[
    "aliases",
    "argv",
    "builtins",
    "cdpath",
    "commands",
    "dis_aliases",
    "dis_builtins",
    "dis_functions",
    "dis_galiases",
    "dis_saliases",
    "fignore",
    "fpath",
    "functions",
    "galiases",
    "mailpath",
    "manpath",
    "module_path",
    "modules",
    "nameddirs",
    "options",
    "path",
    "prompt",
    "psvar",
    "saliases",
    "watch",
];

/// Whether this variable tells the shell or other programs what to run or to read.
pub(crate) fn is_obeyed(name: &str) -> bool {
    if PRINTING.contains(&name) {
        return false;
    }
    OBEYED.contains(&name)
        || OBEYED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || ARRAYS_OF_ZSH.contains(&name)
        || name.ends_with("_functions")
}

/// Whether a shell that evaluates this text, as an arithmetic expression or a prompt, may run a command.
pub(crate) fn is_code(value: &str) -> bool {
    value.contains("$(") || value.contains("${") || value.contains('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_programs_obey() {
        for name in ["PATH", "IFS", "GIT_DIR", "BASH_CMDS", "path", "aliases", "precmd_functions", "LESSOPEN"]
        {
            assert!(is_obeyed(name), "{name}");
        }
        for name in ["X", "PATHS", "NODE_ENV", "LANG"] {
            assert!(!is_obeyed(name), "{name}");
        }
    }
}
