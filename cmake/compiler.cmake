# Language level, warnings, sanitizers, cache and linker: one interface target, nibble_flags.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Parses the large headers once per target instead of once per source. A forgotten include goes unseen that way,
# so the dev preset and the linter work without.
option(NIBBLE_PCH "Precompile the headers that most sources of a target include" OFF)
set(NIBBLE_TEST_FLAGS "" CACHE STRING "Further flags for test programs, e.g. -O1: they compile in 70 % of the time")
option(NIBBLE_WERROR "Treat warnings as errors" ON)
option(NIBBLE_DCHECK "Compile DCHECK and memory poisoning in" OFF)

find_program(NIBBLE_CCACHE ccache)
set(NIBBLE_LAUNCHER "")
if(NIBBLE_CCACHE)
  if(NIBBLE_PCH)
    set(NIBBLE_CCACHE_PCH CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
  # Paths below the sources are hashed as relative ones, so that clones share what they compiled.
  set(NIBBLE_LAUNCHER "${CMAKE_COMMAND}" -E env
    "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 ${NIBBLE_CCACHE_PCH} "${NIBBLE_CCACHE}")
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${NIBBLE_LAUNCHER}")
  endif()
endif()
find_program(NIBBLE_MOLD mold)
if(NIBBLE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(nibble_flags INTERFACE)
target_include_directories(nibble_flags INTERFACE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_BINARY_DIR}/generated")
# The baseline every machine must have; faster code paths live in ISA files and are picked at start.
# FP contraction is off so that results do not depend on what the compiler fuses.
target_compile_options(nibble_flags INTERFACE
  -march=x86-64-v2 -ffp-contract=off
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(NIBBLE_WERROR)
  target_compile_options(nibble_flags INTERFACE -Werror)
endif()
if(NIBBLE_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # What comes out of a precompiled header no longer counts as a system header, and g++ 12 warns falsely about its
  # strings (GCC bug 105651 and its kin). The dev preset still has these warnings.
  target_compile_options(nibble_flags INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
    -Wno-stringop-overread -Wno-maybe-uninitialized -Wno-dangling-pointer)
endif()
target_compile_definitions(nibble_flags INTERFACE
  $<$<BOOL:${NIBBLE_DCHECK}>:NIBBLE_DCHECK=1>)

# Debug facts at level 1: stack traces keep names and lines, objects stay small.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

if(NIBBLE_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # compiles in 60 % of the time of -O2
  add_compile_options(-fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${NIBBLE_SANITIZE})
endif()
