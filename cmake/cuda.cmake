# Decides whether the CUDA backends are built. Sets NIBBLE_CUDA_ENABLED and, where it is on, gives
#   nibble_cuda_object(variable a.cu b.cu ... [ARCHITECTURES 90a 80] [DEFINES NAME])
# which compiles each file for the architectures (default: 90a) and puts the objects into the variable; DEFINES makes
# other objects of the same files. The
# objects are plain sources of a C++ target: CUDA as a CMake language would make nvcc the linker of every program.
#   90a  machine code for Hopper's own instructions (wgmma, TMA; plain 90 lacks both)
#   80   machine code for sm_80, which sm_86 and sm_89 run too, and PTX, from which the driver makes code for
#        everything newer that has no machine code in the object
set(NIBBLE_CUDA_ENABLED OFF)
if(NOT NIBBLE_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12.8 QUIET)
  if(CUDAToolkit_NVCC_EXECUTABLE)
    set(NIBBLE_CUDA_ENABLED ON)
  elseif(NIBBLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "NIBBLE_CUDA is ON but no CUDA compiler was found; install nvcc or use -DNIBBLE_CUDA=OFF")
  endif()
endif()
message(STATUS "nibble: CUDA backends ${NIBBLE_CUDA_ENABLED}")

set(NIBBLE_NVCC_FLAGS -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Xcompiler=-fPIC,-Wall,-Wextra
  -Werror=all-warnings)
set(NIBBLE_NVCC_90a -gencode=arch=compute_90a,code=sm_90a)
set(NIBBLE_NVCC_80 -gencode=arch=compute_80,code=[sm_80,compute_80])

function(nibble_cuda_object variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DEFINES" "ARCHITECTURES")
  set(suffix "")
  set(defines)
  if(arg_DEFINES)
    set(suffix ".${arg_DEFINES}")
    set(defines "-D${arg_DEFINES}")
  endif()
  if(NOT arg_ARCHITECTURES)
    set(arg_ARCHITECTURES 90a)
  endif()
  set(targets)
  foreach(architecture IN LISTS arg_ARCHITECTURES)
    if(NOT DEFINED NIBBLE_NVCC_${architecture})
      message(FATAL_ERROR "nibble_cuda_object: unknown architecture ${architecture}")
    endif()
    list(APPEND targets ${NIBBLE_NVCC_${architecture}})
  endforeach()
  set(objects)
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    get_filename_component(path "${source}" ABSOLUTE)
    file(RELATIVE_PATH name "${CMAKE_CURRENT_SOURCE_DIR}" "${path}")
    string(REPLACE ".." "up" name "${name}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}${suffix}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${NIBBLE_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${NIBBLE_NVCC_FLAGS} ${defines} ${targets}
        -I "${CMAKE_SOURCE_DIR}/src" -I "${CMAKE_SOURCE_DIR}" -I "${CMAKE_BINARY_DIR}/generated"
        -MD -MF "${object}.d" -c "${path}" -o "${object}"
      DEPENDS "${path}"
      DEPFILE "${object}.d"
      COMMENT "Building CUDA object ${name}${suffix}.o"
      VERBATIM)
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    list(APPEND objects "${object}")
  endforeach()
  set(${variable} "${objects}" PARENT_SCOPE)
endfunction()

# nibble_cuda_architectures(a.cu b.cu ... ARCHITECTURES 100a 120a): the target of that name also compiles each file for
# each architecture, to see that it can be; nothing uses the result.
function(nibble_cuda_architectures)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "ARCHITECTURES")
  set(results)
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    get_filename_component(path "${source}" ABSOLUTE)
    get_filename_component(name "${source}" NAME_WE)
    foreach(architecture IN LISTS arg_ARCHITECTURES)
      set(result "${CMAKE_CURRENT_BINARY_DIR}/${name}.sm_${architecture}.o")
      add_custom_command(
        OUTPUT "${result}"
        COMMAND ${NIBBLE_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${NIBBLE_NVCC_FLAGS}
          -gencode=arch=compute_${architecture},code=sm_${architecture}
          -I "${CMAKE_SOURCE_DIR}/src" -I "${CMAKE_SOURCE_DIR}" -I "${CMAKE_BINARY_DIR}/generated"
          -MD -MF "${result}.d" -c "${path}" -o "${result}"
        DEPENDS "${path}"
        DEPFILE "${result}.d"
        COMMENT "Compiling ${name} for sm_${architecture}"
        VERBATIM)
      list(APPEND results "${result}")
    endforeach()
  endforeach()
  add_custom_target(nibble_cuda_architectures DEPENDS ${results})
endfunction()
