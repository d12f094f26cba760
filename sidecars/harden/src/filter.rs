//! seccomp programs: what a list of calls is answered with, as one program that finds a call by bisection.
//!
//! The library compares with one call after the other, and gives one answer for a whole program. But when a
//! program is installed the kernel runs it once for every call there is, and later for every call whose
//! answer depends on arguments, so that the way through it counts. Rules on arguments stay the library's.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, apply_filter, sock_filter};

use crate::HardenError;

/// Where the kernel puts the number of the call.
const NUMBER: u32 = 0;

/// Calls and what they are answered with.
#[derive(Debug)]
pub struct Filter {
    /// By the first number of a range that ends where the next one begins; the first begins with 0.
    ranges: BTreeMap<u32, Answer>,
}

/// What a call is answered with.
#[derive(Debug, Clone)]
enum Answer {
    Pass,
    Fail(i32),
    /// Fails with the error of the first rule that holds, and passes when none does.
    FailWhen(Vec<(SeccompRule, i32)>),
}

impl Filter {
    /// Every call passes that is not named.
    #[must_use]
    pub fn passing() -> Self {
        Self::of(Answer::Pass)
    }

    /// Every call that is not named fails with this error, those included that no kernel has yet.
    #[must_use]
    pub fn failing(errno: i32) -> Self {
        Self::of(Answer::Fail(errno))
    }

    fn of(others: Answer) -> Self {
        Self { ranges: BTreeMap::from([(0, others)]) }
    }

    /// These calls pass.
    pub fn allow(&mut self, calls: &[libc::c_long]) {
        for call in calls {
            self.put(*call, Answer::Pass);
        }
    }

    /// These calls fail with this error.
    pub fn refuse(&mut self, calls: &[libc::c_long], errno: i32) {
        for call in calls {
            self.put(*call, Answer::Fail(errno));
        }
    }

    /// This call fails with this error when one of the rules holds, and passes otherwise. Named again, the
    /// rules come after those that it has.
    pub fn refuse_when(&mut self, call: libc::c_long, rules: Vec<SeccompRule>, errno: i32) {
        let before = match u32::try_from(call).map(|number| self.answer(number)) {
            Ok(Answer::FailWhen(before)) => before,
            _ => Vec::new(),
        };
        let rules = rules.into_iter().map(|rule| (rule, errno));
        self.put(call, Answer::FailWhen(before.into_iter().chain(rules).collect()));
    }

    /// A number that is no call of this architecture's numbering would be another's: it is left out.
    fn put(&mut self, call: libc::c_long, answer: Answer) {
        let Ok(number) = u32::try_from(call) else { return };
        let before = self.answer(number);
        self.ranges.entry(number + 1).or_insert(before);
        self.ranges.insert(number, answer);
    }

    fn answer(&self, number: u32) -> Answer {
        self.ranges.range(..=number).next_back().map_or(Answer::Pass, |(_, answer)| answer.clone())
    }

    /// Applies it to this thread and all it will start.
    ///
    /// # Errors
    /// [`HardenError::Filter`] when it cannot be made for this processor or the kernel refuses it.
    pub fn apply(&self) -> Result<(), HardenError> {
        Ok(apply_filter(&self.program()?)?)
    }

    /// The program. A call of another architecture kills the process.
    ///
    /// # Errors
    /// [`HardenError::Filter`] when this processor is unknown to the library.
    pub fn program(&self) -> Result<BpfProgram, HardenError> {
        let here = std::env::consts::ARCH.try_into()?;
        let (pass, any) = (SeccompAction::Allow, SeccompAction::Errno(0));
        // Without rules the library writes the question for the architecture and `pass`.
        let mut program: BpfProgram = SeccompFilter::new(BTreeMap::new(), pass, any, here)?.try_into()?;
        program.pop();
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER));
        let mut ranges: Vec<(u32, Answer)> =
            self.ranges.iter().map(|(start, answer)| (*start, answer.clone())).collect();
        ranges.dedup_by(|next, before| next.1.is_the_same_as(&before.1));
        program.extend(bisect(&ranges));
        Ok(program)
    }
}

/// The way to the range that holds the number, which was loaded.
fn bisect(ranges: &[(u32, Answer)]) -> BpfProgram {
    let middle = ranges.len() / 2;
    let (lower, upper) = ranges.split_at(middle);
    match (lower, upper) {
        (_, []) => vec![ret(libc::SECCOMP_RET_ALLOW)],
        ([], [(_, answer), ..]) => answer.program(),
        (_, [(start, _), ..]) => {
            let lower = bisect(lower);
            let at_least = instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, *start);
            let question = match u8::try_from(lower.len()) {
                Ok(over) => vec![sock_filter { jt: over, ..at_least }],
                // Too far for a conditional jump, so that it leads over one that reaches everywhere.
                Err(_) => {
                    let over = instruction(libc::BPF_JMP | libc::BPF_JA, length(&lower));
                    vec![sock_filter { jf: 1, ..at_least }, over]
                }
            };
            [question, lower, bisect(upper)].concat()
        }
    }
}

impl Answer {
    /// Whether both can be one range. Rules cannot be compared.
    fn is_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pass, Self::Pass) => true,
            (Self::Fail(one), Self::Fail(another)) => one == another,
            _ => false,
        }
    }

    fn program(&self) -> BpfProgram {
        match self {
            Self::Pass => vec![ret(libc::SECCOMP_RET_ALLOW)],
            Self::Fail(errno) => vec![fail(*errno)],
            Self::FailWhen(rules) => {
                // Each goes on after the instruction that follows it when it does not hold.
                let tried = rules.iter().flat_map(|(rule, errno)| {
                    let mut program = BpfProgram::from(rule.clone());
                    program.push(fail(*errno));
                    program
                });
                tried.chain([ret(libc::SECCOMP_RET_ALLOW)]).collect()
            }
        }
    }
}

fn fail(errno: i32) -> sock_filter {
    ret(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs())
}

fn ret(answer: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, answer)
}

fn instruction(code: u32, k: u32) -> sock_filter {
    // Codes are 16 bits wide; none above is larger than a byte.
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt: 0, jf: 0, k }
}

/// The kernel takes programs of 4096 instructions.
fn length(program: &BpfProgram) -> u32 {
    u32::try_from(program.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition};

    use super::*;

    /// `struct seccomp_data` of a call.
    fn call(program: &[sock_filter], number: u32, arguments: [u64; 2]) -> Vec<u8> {
        let mut data = number.to_ne_bytes().to_vec();
        // The library's first instructions compare with the number of this architecture.
        data.extend(program[1].k.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        data.extend([0; 32]);
        data
    }

    /// What the kernel would answer: classic BPF, as far as it is used here.
    fn answer(program: &[sock_filter], data: &[u8]) -> u32 {
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            at += 1;
            match code {
                0x20 => {
                    let word = &data[k as usize..k as usize + 4];
                    accumulator = u32::from_ne_bytes(word.try_into().expect("a word"));
                }
                0x54 => accumulator &= k,
                0x05 => at += k as usize,
                0x15 => at += jump(accumulator == k),
                0x25 => at += jump(accumulator > k),
                0x35 => at += jump(accumulator >= k),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn rule<const N: usize>(conditions: [(u8, Len, Op, u64); N]) -> SeccompRule {
        let conditions = conditions
            .map(|(argument, length, op, value)| SeccompCondition::new(argument, length, op, value));
        SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>().expect("conditions")).expect("rule")
    }

    /// Many calls in no order, with gaps, neighbours and a call on its own.
    fn sample() -> Filter {
        let mut filter = Filter::passing();
        let even: Vec<libc::c_long> = (0..300).map(|n| (n * 74) % 598).filter(|n| *n != 56).collect();
        filter.refuse(&even, libc::EPERM);
        filter.refuse(&[435, 425, 426, 427, -1], libc::ENOSYS);
        let two = rule([(0, Len::Dword, Op::Eq, 1), (1, Len::Qword, Op::Ne, 0)]);
        let mask = rule([(0, Len::Qword, Op::MaskedEq(0xf0), 0x10)]);
        filter.refuse_when(56, vec![two], libc::EACCES);
        filter.refuse_when(56, vec![mask], libc::ENOENT);
        filter
    }

    #[test]
    fn every_call_is_answered_as_the_list_says() {
        let program = sample().program().expect("built");
        let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for number in (0..700).chain([0x4000_0000, 0x4000_0038, u32::MAX]) {
            let expected = match number {
                425..=427 | 435 => error(libc::ENOSYS),
                56 => libc::SECCOMP_RET_ALLOW,
                even if even % 2 == 0 && even < 598 => error(libc::EPERM),
                _ => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(answer(&program, &call(&program, number, [0; 2])), expected, "{number}");
        }
    }

    #[test]
    fn one_rule_of_several_is_enough_and_arguments_have_their_width() {
        let program = sample().program().expect("built");
        for (arguments, refused) in [
            ([1, 1], Some(libc::EACCES)),
            ([1, 0], None),
            ([1 << 32 | 1, 1 << 40], Some(libc::EACCES)),
            ([2, 1], None),
            ([0x1f, 0], Some(libc::ENOENT)),
            ([0x2f, 0], None),
        ] {
            let expected = refused
                .map_or(libc::SECCOMP_RET_ALLOW, |errno| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs());
            assert_eq!(answer(&program, &call(&program, 56, arguments)), expected, "{arguments:x?}");
        }
    }

    #[test]
    fn what_no_list_names_is_refused_by_one_that_allows() {
        let mut filter = Filter::failing(libc::ENOSYS);
        let even: Vec<libc::c_long> = (0..400).map(|n| n * 2 % 466).collect();
        filter.allow(&even);
        filter.allow(&[3, 5]);
        filter.refuse(&[4, 101], libc::EPERM);
        filter.refuse_when(8, vec![rule([(0, Len::Dword, Op::Eq, 1)])], libc::EPERM);
        let program = filter.program().expect("built");
        let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for number in (0..700).chain([0x4000_0000, 0x4000_0002, u32::MAX]) {
            let expected = match number {
                4 | 101 => error(libc::EPERM),
                3 | 5 => libc::SECCOMP_RET_ALLOW,
                even if even % 2 == 0 && even < 466 => libc::SECCOMP_RET_ALLOW,
                _ => error(libc::ENOSYS),
            };
            assert_eq!(answer(&program, &call(&program, number, [0; 2])), expected, "{number}");
        }
        assert_eq!(answer(&program, &call(&program, 8, [1, 0])), error(libc::EPERM));
    }

    #[test]
    fn another_architecture_kills_and_nothing_refused_passes_all() {
        let program = sample().program().expect("built");
        let mut foreign = call(&program, 1, [0; 2]);
        foreign[4] ^= 1;
        assert_eq!(answer(&program, &foreign), libc::SECCOMP_RET_KILL_PROCESS);
        let open = Filter::passing().program().expect("built");
        assert_eq!(answer(&open, &call(&open, 1, [0; 2])), libc::SECCOMP_RET_ALLOW);
        assert!(program.len() < 4096, "{}", program.len());
    }
}
