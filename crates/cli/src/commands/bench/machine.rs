//! What this machine computes with, as the system names it.

use std::fs;

use serde::Serialize;
use toko_kernels::pool::default_threads;

/// Those that kernels are or could be written for.
const FEATURES: [&str; 16] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512vbmi",
    "gfni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
];

/// The processor.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    /// Those that this process may use.
    pub(super) cores: usize,
    pub(super) features: Vec<&'static str>,
}

impl Machine {
    /// Looks at the processor.
    pub(super) fn read() -> Self {
        // Systems without the file have nothing to tell but their kind.
        Self::described(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn described(cpuinfo: &str) -> Self {
        let value = |names: &[&str]| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| names.contains(&name.trim())).map(|(_, value)| value.trim())
        };
        let flags: Vec<&str> =
            value(&["flags", "Features"]).unwrap_or_default().split_whitespace().collect();
        Self {
            cpu: value(&["model name"]).unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: default_threads(),
            features: FEATURES.into_iter().filter(|name| flags.contains(name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Machine;

    #[test]
    fn a_processor_has_the_name_and_the_features_that_the_system_tells() {
        let found = Machine::described(
            "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu avx2 gfni avx512f_x\n",
        );
        assert_eq!(found.cpu, "Some CPU @ 2.00GHz");
        assert_eq!(found.features, ["avx2", "gfni"]);
    }

    #[test]
    fn an_arm_processor_has_no_name_but_features() {
        let found =
            Machine::described("processor : 0\nFeatures : fp asimd asimddp\nCPU part : 1\n");
        assert_eq!(found.cpu, std::env::consts::ARCH);
        assert_eq!(found.features, ["asimd", "asimddp"]);
    }
}
