# Decides whether the CUDA backends are built. Sets NIBBLE_CUDA_ENABLED and, where it is on, gives
#   nibble_cuda_object(variable a.cu b.cu ...)
# which compiles each file for sm_90a and puts the objects into the variable. The objects are plain
# sources of a C++ target: CUDA as a CMake language would make nvcc the linker of every program.
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

# 90a is the Hopper feature set (wgmma, TMA); plain 90 lacks both.
set(NIBBLE_NVCC_FLAGS -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a
  -Xcompiler=-fPIC,-Wall,-Wextra -Werror=all-warnings)

function(nibble_cuda_object variable)
  set(objects)
  foreach(source IN LISTS ARGN)
    get_filename_component(path "${source}" ABSOLUTE)
    file(RELATIVE_PATH name "${CMAKE_CURRENT_SOURCE_DIR}" "${path}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${NIBBLE_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${NIBBLE_NVCC_FLAGS}
        -I "${CMAKE_SOURCE_DIR}/src" -I "${CMAKE_SOURCE_DIR}" -I "${CMAKE_BINARY_DIR}/generated"
        -MD -MF "${object}.d" -c "${path}" -o "${object}"
      DEPENDS "${path}"
      DEPFILE "${object}.d"
      COMMENT "Building CUDA object ${name}.o"
      VERBATIM)
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    list(APPEND objects "${object}")
  endforeach()
  set(${variable} "${objects}" PARENT_SCOPE)
endfunction()
